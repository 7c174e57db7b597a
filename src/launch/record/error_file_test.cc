#include "src/launch/record/error_file.h"

#include <gtest/gtest.h>

#include <csignal>
#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"
#include "src/base/testing/test_directory.h"

namespace lockstep {
namespace {

WorkerFailure typical_failure() {
  return {.rank = 3,
          .workers = 4,
          .pid = 4711,
          .status = {.signal = SIGSEGV},
          .seconds = 1.5,
          .program = "./train",
          .last_lines = {"step 1", "caf\xe9"},
          .log_path = "logs/rank-3.log",
          .exception = WorkerException{.message = "ValueError: no batch",
                                       .traceback = "in main"}};
}

TEST(ErrorFile, TellsOfTheRankThatFailed) {
  const TestDirectory folder;
  const std::string path = folder / "error.json";
  write_error_file(path, typical_failure(), 2, "node-a");
  const auto report = nlohmann::json::parse(contents(path));
  EXPECT_EQ(report.at("message"), "rank 3 was killed by signal 11 (SIGSEGV)");
  EXPECT_EQ(report.at("rank"), 3);
  EXPECT_EQ(report.at("workers"), 4);
  EXPECT_EQ(report.at("host"), "node-a");
  EXPECT_EQ(report.at("exit_code"), 128 + SIGSEGV);
  EXPECT_EQ(report.at("signal"), "SIGSEGV");
  EXPECT_EQ(report.at("restarts"), 2);
  EXPECT_EQ(report.at("output").at(0), "step 1");
  EXPECT_EQ(report.at("output").at(1), "caf\xef\xbf\xbd");
  EXPECT_EQ(report.at("log"), "logs/rank-3.log");
  EXPECT_NE(report.at("likely"), "");
  EXPECT_EQ(report.at("exception").at("message"), "ValueError: no batch");
  EXPECT_EQ(report.at("exception").at("traceback"), "in main");
  WorkerFailure other = typical_failure();
  other.exception.reset();
  write_error_file(path, other, 2, "node-a");
  EXPECT_TRUE(nlohmann::json::parse(contents(path)).at("exception").is_null());
}

TEST(ErrorFile, OfAnEarlierJobIsRemoved) {
  const TestDirectory folder;
  const std::string path = folder / "error.json";
  write_error_file(path, typical_failure(), 0, "node-a");
  remove_error_file(path);
  EXPECT_TRUE(folder.entries().empty());
  remove_error_file(path);  // a second call removes nothing
}

TEST(ErrorFile, CannotBeWrittenWithoutItsFolder) {
  const TestDirectory folder;
  EXPECT_THROW(write_error_file(folder / "none/error.json", typical_failure(),
                                0, "node-a"),
               SystemError);
}

}  // namespace
}  // namespace lockstep
