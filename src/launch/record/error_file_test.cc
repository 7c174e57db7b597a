#include "src/launch/record/error_file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "lockstep/base/error.h"
#include "src/base/testing/test_directory.h"
#include "src/base/text_file.h"
#include "src/net/file_descriptor.h"

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
  const ErrorFile file(path);
  file.write(typical_failure(), 2, "node-a");
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
  file.write(other, 2, "node-a");
  EXPECT_TRUE(nlohmann::json::parse(contents(path)).at("exception").is_null());
}

TEST(ErrorFile, OfAnEarlierJobIsRemoved) {
  const TestDirectory folder;
  const std::string path = folder / "error.json";
  ErrorFile(path).write(typical_failure(), 0, "node-a");
  const ErrorFile next(path);
  EXPECT_TRUE(folder.entries().empty());
  const ErrorFile other(path);  // removes nothing
}

TEST(ErrorFile, HasTheModeOfTheEarlierOneAndSparesTheLinkToIt) {
  constexpr auto kPrivate =
      std::filesystem::perms::owner_read | std::filesystem::perms::owner_write;
  const TestDirectory folder;
  replace_text_file(folder / "error.json", "of an earlier job");
  std::filesystem::permissions(folder / "error.json", kPrivate);
  std::filesystem::create_symlink("error.json", folder / "link");
  const ErrorFile file(folder / "link");
  EXPECT_THAT(folder.entries(), testing::ElementsAre("link"));
  file.write(typical_failure(), 0, "node-a");
  EXPECT_TRUE(std::filesystem::is_symlink(folder / "link"));
  EXPECT_EQ(std::filesystem::status(folder / "error.json").permissions(),
            kPrivate);
}

// As root it would remove /dev/stderr.
TEST(ErrorFile, RemovesNeitherADeviceNorALinkToAnOpenFile) {
  const TestDirectory folder;
  const FileDescriptor log(
      ::open((folder / "log").c_str(), O_CREAT | O_WRONLY, 0600));
  std::filesystem::create_symlink("/proc/self/fd/" + std::to_string(log.get()),
                                  folder / "stderr");
  std::filesystem::create_symlink("/dev/null", folder / "null");
  for (const char* name : {"stderr", "null"})
    EXPECT_THROW(ErrorFile(folder / name), SystemError);
  EXPECT_EQ(folder.entries().size(), 3u);
}

TEST(ErrorFile, CannotBeWrittenWithoutItsFolder) {
  const TestDirectory folder;
  const ErrorFile file(folder / "none/error.json");
  EXPECT_THROW(file.write(typical_failure(), 0, "node-a"), SystemError);
}

}  // namespace
}  // namespace lockstep
