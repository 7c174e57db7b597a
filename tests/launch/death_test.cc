// The launcher reports how a job ends and leaves nothing behind.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <cstring>
#include <ostream>

#include "launched_command.h"
#include "src/base/sanitized.h"
#include "src/base/testing/test_directory.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::EndsWith;
using testing::HasSubstr;
using testing::MatchesRegex;
using testing::Not;

// The rest of a worker's script: it starts a child, prints a line, and would
// run for long.
constexpr const char* kStay = "; sleep 1000 & echo up; wait";
// The same, but the worker and its child ignore SIGTERM.
constexpr const char* kStayDeaf =
    "; trap '' TERM; sleep 1000 & echo up; while :; do wait; sleep 1000; done";
// A grandchild outside the worker's process group, session and process tree.
constexpr const char* kStray = "; (setsid sleep 1000 &)";

std::string if_rank(int rank, const std::string& script) {
  return "if [ $RANK = " + std::to_string(rank) + " ]; then " + script + "; fi";
}

TEST(Death, ByExitCodeIsReportedAndPassedOn) {
  LaunchedCommand command(
      shell_workers(3, if_rank(1, "echo last words; exit 7") + kStay));
  const CommandResult result = command.finish();
  EXPECT_EQ(result.exit_code, 7);
  EXPECT_FALSE(command.something_is_left());
  EXPECT_THAT(result.err,
              AllOf(HasSubstr("lockstep: rank 1 of 3 exited with code 7"),
                    HasSubstr("its last line\n    last words\n"),
                    HasSubstr("the other ranks were ended")));
}

// The errors of two ranks that crash as `how` says.
CommandResult crash(const char* how,
                    const std::vector<std::string>& environment = {}) {
  return run_lockstep({"run", "-n", "2", LOCKSTEP_CRASHER, how}, environment);
}

TEST(Crash, OfAProgramShowsTheCallsThatLedToIt) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer reports crashes itself";
  const CommandResult result = crash("pointer");
  EXPECT_EQ(result.exit_code, 128 + SIGSEGV);
  EXPECT_THAT(result.err,
              AllOf(HasSubstr(" received SIGSEGV; its calls, the last first:"),
                    HasSubstr("follow_a_lost_pointer()"),
                    HasSubstr(" main (launch_crasher+0x")));
}

TEST(Crash, ByAnExceptionThatNothingCatchesShowsWhatThrew) {
  const CommandResult result = crash("exception");
  EXPECT_EQ(result.exit_code, 128 + SIGABRT);
  EXPECT_THAT(result.err, AllOf(HasSubstr("what():  no more data"),
                                HasSubstr("throw_what_nothing_catches()")));
}

TEST(Crash, OfAnOverflownStackIsShownToo) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer reports crashes itself";
  EXPECT_THAT(crash("recursion").err, HasSubstr("recurse_without_end("));
}

TEST(Crash, IsLeftToTheProgramsOwnHandlerAndToTheUsersWish) {
  EXPECT_EQ(crash("own handler").exit_code, 9);
  EXPECT_THAT(crash("exception", {"LOCKSTEP_BACKTRACE=0"}).err,
              Not(HasSubstr("its calls")));
}

TEST(Death, BySignalIsReportedAndPassedOn) {
  LaunchedCommand command(
      shell_workers(2, if_rank(0, "echo oh >&2; kill -9 $$") + kStay));
  const CommandResult result = command.finish();
  EXPECT_EQ(result.exit_code, 128 + SIGKILL);
  EXPECT_FALSE(command.something_is_left());
  EXPECT_THAT(result.err,
              AllOf(HasSubstr("rank 0 of 2 was killed by signal 9 (SIGKILL)"),
                    HasSubstr("[rank 0] oh\n"), Not(HasSubstr("    oh\n")),
                    HasSubstr("likely:  another process killed it")));
}

TEST(Death, ReportShowsTheLastThirtyLinesWhereOthersHaveComeSince) {
  const Gate others_print;
  const Gate end;
  LaunchedCommand command(shell_workers(
      2, if_rank(1, "seq 1 50 >&2; " + end.wait() + "exit 1") + "; " +
             others_print.wait() + "seq 1001 1050 >&2" + kStay));
  ASSERT_TRUE(command.wait_for("] 50\n"));
  others_print.open();
  ASSERT_TRUE(command.wait_for("up\n"));
  end.open();
  const CommandResult result = command.finish();
  std::string tail;
  for (int i = 21; i <= 50; ++i) tail += "    " + std::to_string(i) + "\n";
  EXPECT_THAT(result.err, HasSubstr("its last 30 lines\n" + tail + "  next:"));
}

TEST(Death, OfALonelyRankIsReportedToo) {
  const CommandResult result =
      run_lockstep(shell_workers(1, "echo bye; kill -SEGV $$"));
  EXPECT_EQ(result.exit_code, 128 + SIGSEGV);
  EXPECT_THAT(result.err,
              HasSubstr("rank 0 of 1 was killed by signal 11 (SIGSEGV)"));
}

TEST(Death, NamesTheLogWhereThereIsOne) {
  const TestDirectory made;
  const std::string folder = made.path();
  auto arguments = shell_workers(2, "exit $RANK");
  arguments.insert(arguments.begin() + 1, {"--log-dir", folder});
  EXPECT_THAT(run_lockstep(arguments).err, HasSubstr(folder + "/rank-1.log\n"));
}

TEST(Death, EndsWorkersThatIgnoreRequestsToEnd) {
  LaunchedCommand command(
      shell_workers(4, if_rank(3, "read line </dev/null; exit 3") + kStayDeaf));
  const CommandResult result = command.finish();
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_FALSE(command.something_is_left());
}

TEST(Death, LetsWorkersThatAreStoppedEndInTheirOwnWay) {
  const Gate die;
  LaunchedCommand command(
      shell_workers(2, if_rank(1, die.wait() + "exit 4") +
                           "; trap 'echo saved; exit 0' TERM; "
                           "sleep 1000 & echo pid $$.; wait"));
  ASSERT_TRUE(command.wait_for("."));
  const std::string& out = command.output_so_far();
  const pid_t worker = std::stoi(out.substr(out.find("pid ") + 4));
  ASSERT_EQ(::kill(worker, SIGSTOP), 0);
  die.open();
  const CommandResult result = command.finish();
  EXPECT_EQ(result.exit_code, 4);
  EXPECT_THAT(result.out, HasSubstr("[rank 0] saved\n"));
  EXPECT_FALSE(command.something_is_left());
}

TEST(Death, EndsGrandchildrenWhereverTheyHaveGone) {
  LaunchedCommand command(
      shell_workers(2, "true" + std::string(kStray) + "; exit 5"));
  EXPECT_EQ(command.finish().exit_code, 5);
  EXPECT_FALSE(command.something_is_left());
}

TEST(Success, EndsGrandchildrenToo) {
  LaunchedCommand command(shell_workers(2, "true" + std::string(kStray)));
  const CommandResult result = command.finish();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  EXPECT_FALSE(command.something_is_left());
}

TEST(Success, DoesNotWaitForAGrandchildThatHoldsThePipe) {
  LaunchedCommand command(shell_workers(2, "sleep 1000 & echo done"));
  const CommandResult result = command.finish();
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_FALSE(command.something_is_left());
}

// Arguments for one worker, whose processes have a day to end.
std::vector<std::string> patient_worker(const std::string& script) {
  return {"run", "--grace=86400", "sh", "-c", script};
}

// A rank leaves a process behind, which runs a program of its own: issue 43,
// point 14. The launcher would wait for a day.
TEST(Success, WaitsForNoChildOfAGrandchild) {
  for (const std::string left : {
           "sleep 1000 & PASS; wait",         // of its process group
           "setsid sleep 1000 & PASS; wait",  // of another one
           "setsid sh -c 'setsid sleep 1000 & PASS; wait' & wait",
           // Until that ends. The child opens the gate: a signal that reaches
           // it before it has executed a program meets the shell's trap.
           "trap 'exit 0' TERM; sh -c 'PASS; exec sleep 1000'; true",
           "sh -c 'kill -STOP $$' & PASS; wait",
       }) {
    const Gate gate;
    std::string script = left;
    script.replace(script.find("PASS"), 4, gate.pass());
    LaunchedCommand command(patient_worker("cat >\"$LEFT\" <<'END'\n" + script +
                                           "\nEND\nsetsid sh \"$LEFT\" & " +
                                           gate.wait() + "exit 0"),
                            {"LEFT=" + (gate.path() + "-script")});
    const CommandResult result = command.finish();
    EXPECT_EQ(result.exit_code, 0) << left << result.err;
    EXPECT_FALSE(command.something_is_left()) << left;
  }
}

// A helper that is an orphan only once its rank has ended.
TEST(Interruption, WaitsForNoHelperInASessionOfItsOwn) {
  LaunchedCommand command(patient_worker(
      "setsid sh -c 'setsid sleep 1000 & echo up; wait' & wait"));
  ASSERT_TRUE(command.wait_for("up\n"));
  command.signal(SIGINT);
  EXPECT_EQ(command.finish().exit_code, 130);
  EXPECT_FALSE(command.something_is_left());
}

TEST(Grace, IsNotSpentInSilence) {
  const Gate gate;
  LaunchedCommand command(
      patient_worker("setsid sh -c \"trap '' TERM; " + gate.pass() +
                     "; exec sleep 1000\" & " + gate.wait() + "exit 0"));
  ASSERT_TRUE(command.wait_for("waits for process "));
  ASSERT_TRUE(command.wait_for("on Ctrl-C\n"));
  EXPECT_THAT(command.errors_so_far(),
              MatchesRegex("(.*\n)?lockstep: waits for process [0-9]+ \\(sleep "
                           "1000\\) that rank 0 left behind to end: it sent "
                           "SIGTERM [0-9.]+ s ago, and sends SIGKILL in "
                           "[0-9.]+ s \\(--grace\\), or on Ctrl-C\n"));
  command.signal(SIGINT);
  EXPECT_EQ(command.finish().exit_code, 130);
  EXPECT_FALSE(command.something_is_left());
}

TEST(Grace, EndsWithTheNamesOfThoseThatAreKilled) {
  LaunchedCommand command(shell_workers(
      2, if_rank(1, "trap '' TERM; echo deaf; while :; do sleep 1000; done") +
             kStay));
  ASSERT_TRUE(command.wait_for("up\n"));
  ASSERT_TRUE(command.wait_for("deaf\n"));
  command.signal(SIGTERM);
  EXPECT_THAT(command.finish().err,
              ContainsRegex("lockstep: kills rank 1 \\(process [0-9]+\\), "
                            "[0-9.]+ s after SIGTERM \\(--grace\\)\n"));
  EXPECT_FALSE(command.something_is_left());
}

struct Request {
  int signal;
  const char* script;
};

std::ostream& operator<<(std::ostream& out, const Request& request) {
  return out << "SIG" << ::sigabbrev_np(request.signal)
             << (request.script == kStayDeaf ? ", workers ignore SIGTERM" : "");
}

class Interruption : public testing::TestWithParam<Request> {};

TEST_P(Interruption, EndsAllAndLeavesNothing) {
  const std::string script = std::string("true") + kStray + GetParam().script;
  LaunchedCommand command(shell_workers(8, script));
  ASSERT_TRUE(command.wait_for("up\n", 8));
  EXPECT_TRUE(command.something_is_left());
  command.signal(GetParam().signal);
  const CommandResult result = command.finish();
  EXPECT_EQ(result.exit_code, 128 + GetParam().signal);
  EXPECT_FALSE(command.something_is_left());
  EXPECT_THAT(result.err, HasSubstr("ending 8 workers"));
  EXPECT_THAT(result.err, Not(HasSubstr("exited")));
}

INSTANTIATE_TEST_SUITE_P(
    BySignal, Interruption,
    testing::Values(Request{SIGINT, kStay}, Request{SIGINT, kStayDeaf},
                    Request{SIGTERM, kStay}, Request{SIGTERM, kStayDeaf},
                    Request{SIGHUP, kStay}, Request{SIGQUIT, kStay},
                    Request{SIGQUIT, kStayDeaf}));

TEST(Interruption, LetsAWorkerSayItsLastWords) {
  LaunchedCommand command(
      shell_workers(2, "trap 'echo saved; exit 0' TERM" + std::string(kStay)));
  ASSERT_TRUE(command.wait_for("up\n", 2));
  command.signal(SIGINT);
  const CommandResult result = command.finish();
  EXPECT_EQ(result.exit_code, 130);
  EXPECT_THAT(result.out, AllOf(HasSubstr("[rank 0] saved\n"),
                                HasSubstr("[rank 1] saved\n")));
}

TEST(Interruption, IsNotCausedByASignalThatWasIgnoredBefore) {
  // Like nohup for SIGHUP; the launcher inherits it from the shell.
  const std::string inner = std::string(LOCKSTEP_COMMAND) +
                            " run -n 2 sh -c 'kill -HUP $PPID; echo alive'";
  LaunchedCommand command({"run", "sh", "-c", "trap '' HUP; exec " + inner});
  const CommandResult result = command.finish();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(sorted_lines(result.out).size(), 2u);
}

TEST(Interruption, OfALauncherInALauncherLeavesNothing) {
  const std::string script = std::string(LOCKSTEP_COMMAND) +
                             " run -n 2 sh -c 'true" + kStray + kStay + "'";
  LaunchedCommand command(shell_workers(2, script));
  ASSERT_TRUE(command.wait_for("up\n", 4));
  command.signal(SIGINT);
  EXPECT_EQ(command.finish().exit_code, 130);
  EXPECT_FALSE(command.something_is_left());
}

TEST(LaunchersDeath, TakesTheWorkersAlong) {
  LaunchedCommand command(shell_workers(2, "echo up; exec sleep 1000"));
  ASSERT_TRUE(command.wait_for("up\n", 2));
  command.signal(SIGKILL);
  EXPECT_TRUE(command.wait_until_nothing_is_left());
  EXPECT_EQ(command.finish().exit_code, 128 + SIGKILL);
}

TEST(Suspension, StopsAndContinuesTheWorkers) {
  LaunchedCommand command(
      shell_workers(2,
                    "echo up; grep State: /proc/$PPID/status; "
                    "read line; echo on"));
  ASSERT_TRUE(command.wait_for("on\n", 2));
  EXPECT_EQ(command.finish().exit_code, 0);

  LaunchedCommand stopped(shell_workers(2, std::string("true") + kStay));
  ASSERT_TRUE(stopped.wait_for("up\n", 2));
  stopped.signal(SIGTSTP);
  ASSERT_TRUE(stopped.wait_until_stopped());
  stopped.signal(SIGCONT);
  stopped.signal(SIGINT);
  EXPECT_EQ(stopped.finish().exit_code, 130);
  EXPECT_FALSE(stopped.something_is_left());
}

}  // namespace
}  // namespace lockstep
