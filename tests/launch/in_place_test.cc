// What `lockstep run --in-place` does when a worker dies; tests/elastic has the
// ranks that form new groups.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "launched_command.h"
#include "src/base/testing/test_directory.h"

namespace lockstep {
namespace {

using testing::HasSubstr;
using testing::Not;

// The arguments for two workers that run `script`.
std::vector<std::string> in_place(const std::vector<std::string>& flags,
                                  const std::string& script) {
  std::vector<std::string> arguments{"run", "--grace=0.5", "-n", "2",
                                     "--in-place"};
  arguments.insert(arguments.end(), flags.begin(), flags.end());
  arguments.insert(arguments.end(), {"sh", "-c", script});
  return arguments;
}

TEST(RunInPlace, StartsAnotherWorkerInThePlaceOfADeadOne) {
  const TestDirectory logs;
  const Gate gate;
  const CommandResult result = run_lockstep(in_place(
      {"--max-restarts=1", "--log-dir", logs.path()},
      "if [ $RANK = 0 ]; then " + gate.wait() +
          "echo rank 0 is worker $LOCKSTEP_ELASTIC_ID; "
          "elif [ $TORCHELASTIC_RESTART_COUNT = 0 ]; then echo dies; exit 3; "
          "else echo rank $LOCAL_RANK is worker $LOCKSTEP_ELASTIC_ID; " +
          gate.pass() + "; fi"));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("[rank 0] rank 0 is worker 0"));
  EXPECT_THAT(result.out, HasSubstr("[rank 1] rank 1 is worker 2"));
  EXPECT_THAT(result.err,
              HasSubstr("lockstep: rank 1 exited with code 3; the job starts "
                        "another in its place (restart 1 of 1)"));
  const auto text_of = [&](const char* name) {
    std::ifstream file(logs / name);
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  EXPECT_EQ(text_of("rank-1.log"), "dies\n");
  EXPECT_EQ(text_of("restart-1/rank-1.log"), "rank 1 is worker 2\n");
}

TEST(RunInPlace, GoesOnWithoutADeadWorkerWhereEnoughRemain) {
  const Gate gate;
  LaunchedCommand command(
      in_place({"--min-ranks=1"}, "if [ $RANK = 0 ]; then " + gate.wait() +
                                      "echo done; else kill -9 $$; fi"));
  ASSERT_TRUE(command.wait_for("the job goes on without it"));
  gate.open();
  const CommandResult result = command.finish();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("[rank 0] done"));
}

TEST(RunInPlace, EndsTheJobByTheUsualReportWhereTooFewRemain) {
  const Gate never;
  const CommandResult result = run_lockstep(
      in_place({}, "if [ $RANK = 0 ]; then " + never.wait() + "fi; exit 7"));
  EXPECT_EQ(result.exit_code, 7);
  EXPECT_THAT(result.err, HasSubstr("rank 1"));
  EXPECT_THAT(result.err, Not(HasSubstr("the job goes on")));
}

// The ranks of a program that never forms another group.
TEST(RunInPlace, BlamesTheRankThatDiedFirstWhereTheOthersFailToo) {
  const Gate gate;
  LaunchedCommand command(in_place(
      {"--min-ranks=1"}, "if [ $RANK = 0 ]; then " + gate.wait() +
                             "exit 5; else echo the reason; exit 3; fi"));
  ASSERT_TRUE(command.wait_for("the job goes on without it"));
  gate.open();
  const CommandResult result = command.finish();
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(result.err, HasSubstr("rank 1 of 2 exited with code 3 after"));
  EXPECT_THAT(result.err, HasSubstr("its last line\n    the reason"));
}

TEST(RunInPlace, StartsNoMoreWorkersThanAllowed) {
  const Gate never;
  const CommandResult result = run_lockstep(
      in_place({"--max-restarts=2"},
               "if [ $RANK = 0 ]; then " + never.wait() + "fi; exit 5"));
  EXPECT_EQ(result.exit_code, 5);
  EXPECT_THAT(result.err, HasSubstr("(restart 2 of 2)"));
}

}  // namespace
}  // namespace lockstep
