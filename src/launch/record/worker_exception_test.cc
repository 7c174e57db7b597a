#include "src/launch/record/worker_exception.h"

#include <gmock/gmock.h>
#include <sys/stat.h>

#include <fstream>

#include "src/base/testing/test_directory.h"
#include "src/launch/record/failure_report.h"

namespace lockstep {
namespace {

using testing::EndsWith;
using testing::HasSubstr;

class WorkerExceptions : public testing::Test {
 protected:
  std::optional<WorkerException> read(const std::string& text) const {
    std::ofstream(path_, std::ios::binary) << text;
    return read_worker_exception(path_);
  }

  const TestDirectory folder_;
  const std::filesystem::path path_ = folder_ / "error-0.json";
};

TEST_F(WorkerExceptions, HaveAMessageAndATraceback) {
  const auto full = read(
      R"({"message": {"message": "ValueError: é", "extraInfo":
          {"py_callstack": "Traceback\n  in main", "timestamp": "1"}}})");
  ASSERT_TRUE(full);
  EXPECT_EQ(full->message, "ValueError: é");
  EXPECT_EQ(full->traceback, "Traceback\n  in main");
  const auto brief = read(R"({"message": "it failed"})");
  ASSERT_TRUE(brief);
  EXPECT_EQ(brief->message, "it failed");
  EXPECT_EQ(brief->traceback, "");
}

TEST_F(WorkerExceptions, AreNoneInOtherFiles) {
  EXPECT_FALSE(read_worker_exception(path_));
  EXPECT_FALSE(read_worker_exception(folder_.path()));
  for (const std::string text :
       {"", "{", "[]", "null", "{\"message\": 1}", "{\"message\": {}}",
        "{\"message\": {\"message\": []}}", "{\"message\": \"\"}",
        "{\"message\": \"\xff\"}", "{\"other\": \"text\"}"})
    EXPECT_FALSE(read(text)) << text;
  EXPECT_TRUE(read(R"({"message": {"message": "a", "extraInfo": [1, 2]}})"));
  EXPECT_TRUE(read(
      R"({"message": {"message": "a", "extraInfo": {"py_callstack": 2}}})"));
}

TEST_F(WorkerExceptions, AreReadWithinBounds) {
  constexpr std::size_t kMebibyte = std::size_t{1} << 20U;
  EXPECT_FALSE(read(std::string(kMebibyte, '[')));
  const auto with = [](const std::string& message,
                       const std::string& traceback) {
    return "{\"message\": {\"message\": \"" + message +
           "\", \"extraInfo\": {\"py_callstack\": \"" + traceback + "\"}}}";
  };
  EXPECT_FALSE(read(with(std::string(kMebibyte, 'm'), "")));
  std::string accents;
  for (int i = 0; i < 100'000; ++i) accents += "é";
  const auto cut = read(with("m" + accents, accents + "t"));
  ASSERT_TRUE(cut);
  EXPECT_EQ(cut->message, "m" + accents.substr(0, 4094));
  EXPECT_EQ(cut->traceback.size(), 65535U);
  EXPECT_THAT(cut->traceback, EndsWith("ét"));
}

// Neither waits for a writer nor follows the program elsewhere.
TEST_F(WorkerExceptions, AreNotReadThroughPipesAndLinks) {
  ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0);
  EXPECT_FALSE(read_worker_exception(path_));
  const auto target = folder_ / "target";
  std::ofstream(target) << R"({"message": "it failed"})";
  EXPECT_TRUE(read_worker_exception(target));
  std::filesystem::create_symlink(target, folder_ / "link");
  EXPECT_FALSE(read_worker_exception(folder_ / "link"));
}

TEST_F(WorkerExceptions, AreTheLikelyCauseInOneLineWithoutControlCharacters) {
  const WorkerFailure failure{
      .status = {.code = 1},
      .exception = WorkerException{.message = "ValueError: \x1b[31mred\nnext"}};
  EXPECT_EQ(likely_cause(failure), "it raised ValueError: ?[31mred");
  EXPECT_THAT(describe(failure), HasSubstr("likely:  it raised ValueError"));
}

}  // namespace
}  // namespace lockstep
