#include "lockstep/comm/spawn.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdio.h>  // popen
#include <sys/wait.h>

#include <array>
#include <csignal>
#include <string>

#include "src/base/exit_status.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

struct Result {
  std::string output;  // standard output and error, of the ranks too
  ExitStatus status;
};

// Runs a case of spawn_program_main.cc. The output ends when the program and
// all of its ranks have ended: each has it open.
Result run(const std::string& mode, const std::string& name,
           const std::string& environment = "") {
  const std::string command =
      "exec env -u RANK -u WORLD_SIZE -u OMP_NUM_THREADS " + environment +
      " " LOCKSTEP_SPAWN_PROGRAM " " + mode + " " + name + " 2>&1";
  Result result;
  FILE* const pipe = ::popen(command.c_str(), "r");
  if (pipe == nullptr) return result;
  std::array<char, 4096> part;
  while (const std::size_t count = ::fread(part.data(), 1, part.size(), pipe))
    result.output.append(part.data(), count);
  result.status = ExitStatus::of_wait(::pclose(pipe));
  return result;
}

// prepare_spawn() refuses a program with threads.
void skip_under_thread_sanitizer() {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the thread sanitizer starts a thread before main()";
#endif
}

class PreparedSpawn : public ::testing::Test {
 protected:
  void SetUp() override { skip_under_thread_sanitizer(); }
};

// With prepare_spawn(), and without it.
class Spawn : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (GetParam() == std::string("prepared")) skip_under_thread_sanitizer();
  }

  static Result run(const std::string& name,
                    const std::string& environment = "") {
    return lockstep::run(GetParam(), name, environment);
  }

  static void expect_return(const std::string& name,
                            const ::testing::Matcher<std::string>& output) {
    const Result result = run(name);
    EXPECT_THAT(result.output, output);
    EXPECT_THAT(result.output, EndsWith("spawn returned\n"));
    EXPECT_EQ(result.status.exit_code(), 0);
  }

  static void expect_failure(const std::string& name,
                             const std::string& output) {
    const Result result = run(name);
    EXPECT_THAT(result.output, HasSubstr("RankFailure of " + output));
    EXPECT_EQ(result.status.exit_code(), 3);
  }

  static void expect_refusal(const std::string& name,
                             const std::string& message,
                             const std::string& environment = "") {
    const Result result = run(name, environment);
    EXPECT_THAT(result.output, HasSubstr("InvalidArgument: " + message));
    EXPECT_EQ(result.status.exit_code(), 2);
  }
};
INSTANTIATE_TEST_SUITE_P(Both, Spawn, ::testing::Values("prepared", "anew"),
                         [](const auto& mode) { return mode.param; });

TEST_P(Spawn, RunsRanksThatFormAGroup) {
  expect_return("reduce",
                AllOf(HasSubstr("rank 0: sum 6"), HasSubstr("rank 1: sum 6"),
                      HasSubstr("rank 2: sum 6")));
  expect_return("one", HasSubstr("rank 0: sum 1"));
}

TEST_P(Spawn, CanBeCalledAgain) {
  expect_return("twice",
                AllOf(HasSubstr("rank 1: sum 3"), HasSubstr("WORLD_SIZE=1")));
  expect_return("after_failure", AllOf(HasSubstr("failed as expected"),
                                       HasSubstr("WORLD_SIZE=1")));
}

TEST_P(Spawn, CarriesArgumentsOfManyKinds) {
  expect_return("arguments",
                AllOf(HasSubstr("rank 0: text a+ 1000 7 0.5 truefalse"),
                      HasSubstr("rank 1: text a+ 1000 7 0.5 truefalse")));
}

TEST_P(Spawn, CarriesArgumentsOf128MiB) {
  expect_return("large", HasSubstr("rank 1: 16777216 numbers, sum 50331648"));
}

TEST_P(Spawn, GivesRanksTheCallersEnvironmentAndThatOfWorkers) {
  expect_return(
      "environment",
      HasSubstr("rank 1: RANK=1 LOCAL_RANK=1 WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 "
                "MASTER_ADDR=127.0.0.1 OMP_NUM_THREADS=1 SPAWN_TEST=set later "
                "LOCKSTEP_SPAWN=unset"));
  EXPECT_THAT(run("environment", "OMP_NUM_THREADS=3").output,
              HasSubstr("OMP_NUM_THREADS=3"));
}

TEST_P(Spawn, WorksAfterTheProgramHasUsedThreads) {
  expect_return("threads_before", HasSubstr("rank 1: sum 3"));
}

TEST_P(Spawn, WorksWithClosedStreams) {
  expect_return("closed_streams", HasSubstr("rank 1: sum 3"));
}

TEST_P(Spawn, WorksWhereTheProgramIgnoresItsChildren) {
  expect_return("children_ignored", HasSubstr("rank 1: sum 3"));
}

TEST_P(Spawn, LetsARankReturnWithAWorkAndAGroup) {
  expect_return("keep_work", HasSubstr("rank 2: kept 3"));
}

TEST_P(Spawn, LetsRanksForkAndStartPrograms) {
  expect_return("start_program",
                AllOf(HasSubstr("sh: 5"), HasSubstr("rank 0: child 0"),
                      HasSubstr("rank 1: child 0")));
}

TEST_P(Spawn, CarriesTheFirstRanksExceptionAndNotThatOfItsPeers) {
  expect_failure("throw",
                 "rank 1, code 1, signal 0: spawn: rank 1 of 4 threw an "
                 "exception: no such file: data");
  expect_failure("throw_number",
                 "rank 0, code 1, signal 0: spawn: rank 0 of 1 threw an "
                 "exception: an exception that is not a std::exception");
  expect_failure("throw_long",
                 "rank 0, code 1, signal 0: spawn: rank 0 of 1 threw an "
                 "exception: xxxx");
}

TEST_P(Spawn, TellsHowARankEnded) {
  expect_failure("signal", "rank 1, code 137, signal 9");
  expect_failure("exit", "rank 1, code 9, signal 0");
  expect_failure("exit_0", "rank 1, code 0, signal 0");
}

TEST_P(Spawn, EndsRanksThatIgnoreSigtermOrAreStopped) {
  expect_failure("ignore_sigterm", "rank 0, code 1");
  expect_failure("stopped", "rank 0, code 1");
}

TEST_P(Spawn, LeavesNoRankWhenTheProgramIsKilled) {
  EXPECT_EQ(run("kill_program").status.signal, SIGKILL);
}

TEST_P(Spawn, RefusesInvalidNumbersOfRanks) {
  expect_refusal("zero", "spawn: the number of ranks is 0");
  expect_refusal("negative", "spawn: the number of ranks is -1");
  expect_refusal("million", "spawn: the number of ranks is 1000000");
}

TEST_P(Spawn, RefusesToStartRanksOfARank) {
  expect_failure("nested",
                 "rank 0, code 1, signal 0: spawn: rank 0 of 1 threw an "
                 "exception: spawn: this process is already a rank");
  expect_refusal("reduce", "spawn: this process is already a rank",
                 "RANK=0 WORLD_SIZE=1");
  expect_refusal("reduce", "spawn: this process is already a rank",
                 "OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2");
}

TEST_F(PreparedSpawn, RunsTwoCallsAtOnce) {
  const Result result = run("prepared", "two_at_once");
  EXPECT_THAT(result.output,
              AllOf(HasSubstr("rank 1: sum 3"), HasSubstr("rank 2: sum 6"),
                    EndsWith("spawn returned\n")));
}

TEST_F(PreparedSpawn, RefusesAProgramThatHasThreads) {
  const Result result = run("prepared", "living_thread");
  EXPECT_THAT(result.output, HasSubstr("it has 2 threads"));
  EXPECT_EQ(result.status.exit_code(), 2);
}

TEST_F(PreparedSpawn, PrintsBufferedOutputOnce) {
  EXPECT_EQ(run("prepared", "unflushed").output,
            "once\ntwice?spawn returned\n");
}

TEST_F(PreparedSpawn, KeepsNoDescriptorOfTheProgram) {
  const Result result = run("prepared", "descriptors");
  // The request and the result pipe.
  EXPECT_THAT(result.output, HasSubstr("rank 1 has 2 descriptors"));
}

TEST_F(PreparedSpawn, FailsInAForkedChildOfTheProgram) {
  EXPECT_THAT(run("prepared", "fork_first").output,
              AllOf(HasSubstr("this process was forked from the one that "
                              "called prepare_spawn()"),
                    HasSubstr("the child exited with 2")));
}

TEST_F(PreparedSpawn, EndsWithAnErrorWhenItsProcessesAreKilled) {
  const Result watcher = run("prepared", "kill_watcher");
  EXPECT_THAT(watcher.output, HasSubstr("has ended\n  likely:  a signal"));
  EXPECT_EQ(watcher.status.exit_code(), 2);
  // The call that is under way completes.
  const Result server = run("prepared", "kill_server");
  EXPECT_THAT(server.output, AllOf(HasSubstr("the first returned"),
                                   HasSubstr("has ended\n  likely:  a signal"),
                                   Not(HasSubstr("spawn returned"))));
  EXPECT_EQ(server.status.exit_code(), 2);
}

TEST(NewExecution, WorksInAProgramThatHasThreads) {
  EXPECT_THAT(run("anew", "living_thread").output,
              AllOf(HasSubstr("rank 1: sum 3"), EndsWith("spawn returned\n")));
}

}  // namespace
}  // namespace lockstep
