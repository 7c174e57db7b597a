// The environment that `lockstep run` gives its workers, and its refusals.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "launched_command.h"
#include "src/base/testing/test_directory.h"
#include "src/faults/testing/note_in_shell.h"
#include "src/launch/worker/cpu_share.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::MatchesRegex;
using testing::Not;
using testing::StartsWith;

TEST(Run, GivesEveryWorkerTorchrunsEnvironment) {
  const CommandResult result = run_lockstep(shell_workers(
      8,
      "echo $RANK $LOCAL_RANK of $WORLD_SIZE $LOCAL_WORLD_SIZE group "
      "$GROUP_RANK at $MASTER_ADDR, $OMP_NUM_THREADS thread"));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  std::vector<std::string> expected;
  for (const char* rank : {"0", "1", "2", "3", "4", "5", "6", "7"})
    expected.push_back(std::string("[rank ") + rank + "] " + rank + " " + rank +
                       " of 8 8 group 0 at 127.0.0.1, 1 thread");
  EXPECT_EQ(sorted_lines(result.out), expected);
}

TEST(Run, GivesAllTheSamePortStoreAndSecret) {
  const CommandResult result = run_lockstep(shell_workers(
      3, "echo $MASTER_PORT $LOCKSTEP_STORE $LOCKSTEP_TOKEN | cut -c 1-"));
  std::set<std::string> values;
  for (const std::string& line : sorted_lines(result.out))
    values.insert(line.substr(std::string("[rank 0] ").size()));
  ASSERT_EQ(values.size(), 1u);
  EXPECT_THAT(*values.begin(),
              MatchesRegex("[0-9]+ tcp://127.0.0.1:[0-9]+ [0-9a-f]{64}"));
}

TEST(Run, ServesTheStoreAndLeavesTheMasterPortFree) {
  const CommandResult result =
      run_lockstep({"run", "-n", "4", LOCKSTEP_STORE_PROBE});
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  EXPECT_THAT(sorted_lines(result.out),
              ElementsAre("[rank 0] rank 0 met 4", "[rank 1] rank 1 met 4",
                          "[rank 2] rank 2 met 4", "[rank 3] rank 3 met 4"));
}

TEST(Run, HidesTheVariablesOfALauncherAroundIt) {
  const CommandResult result =
      run_lockstep(shell_workers(1, "echo \"$RANK $TORCHELASTIC_RUN_ID.\""),
                   {"RANK=5", "WORLD_SIZE=9", "TORCHELASTIC_RUN_ID=x"});
  EXPECT_EQ(result.out, "0 none.\n");
}

TEST(Run, TellsWorkersWhereItsPluginsLie) {
  const auto folder =
      std::filesystem::path(LOCKSTEP_COMMAND).parent_path().string();
  if (!std::filesystem::exists(folder + "/liblockstep_gloo.so") &&
      !std::filesystem::exists(folder + "/liblockstep_mpi.so"))
    GTEST_SKIP() << "no plug-in was built";
  const auto worker = shell_workers(1, "echo \"$LOCKSTEP_PLUGIN_PATH\"");
  EXPECT_EQ(run_lockstep(worker).out, folder + "\n");
  EXPECT_EQ(run_lockstep(worker, {"LOCKSTEP_PLUGIN_PATH=/users"}).out,
            "/users\n");
}

TEST(Run, LeavesTheUsersThreadsAlone) {
  const std::string script = "echo \"<$OMP_NUM_THREADS>\"";
  EXPECT_EQ(run_lockstep(shell_workers(1, script)).out, "<>\n");
  EXPECT_THAT(
      sorted_lines(
          run_lockstep(shell_workers(2, script), {"OMP_NUM_THREADS=3"}).out),
      ElementsAre("[rank 0] <3>", "[rank 1] <3>"));
}

// Issue 43, point 17: as under torchrun, one rank may use every core.
TEST(Run, SaysThatOneRankMayUseEveryCore) {
  if (usable_cores() < 2) GTEST_SKIP() << "needs two cores";
  EXPECT_THAT(run_lockstep(shell_workers(1, "true")).err,
              HasSubstr("may compute with a thread on each of " +
                        std::to_string(usable_cores()) + " cores"));
  EXPECT_EQ(run_lockstep(shell_workers(1, "true"), {"OMP_NUM_THREADS=1"}).err,
            "");
}

TEST(Run, GivesEachWorkerItsShareOfTheCores) {
  const auto cores = allowed_cores();
  if (cores.size() < 2 || usable_cores() < static_cast<int>(cores.size()))
    GTEST_SKIP() << "needs two cores and no quota";
  const std::string script = "grep Cpus_allowed_list /proc/self/status";
  const auto bound = sorted_lines(run_lockstep(shell_workers(2, script)).out);
  ASSERT_EQ(bound.size(), 2u);
  EXPECT_NE(bound[0].substr(9), bound[1].substr(9));
  auto arguments = shell_workers(2, script);
  arguments.insert(arguments.begin() + 1, "--bind=none");
  const auto free = sorted_lines(run_lockstep(arguments).out);
  EXPECT_EQ(free[0].substr(9), free[1].substr(9));
  const int many = static_cast<int>(cores.size()) + 1;
  const auto crowded =
      sorted_lines(run_lockstep(shell_workers(many, script)).out);
  EXPECT_EQ(crowded[0].substr(9), free[0].substr(9));
}

TEST(Run, HandsItsInputToRankZeroOnly) {
  LaunchedCommand command(shell_workers(2, "cat; echo done"));
  EXPECT_THAT(sorted_lines(command.finish().out),
              ElementsAre("[rank 0] done", "[rank 1] done"));
}

TEST(Run, TagsLinesWhenThereIsMoreThanOneRank) {
  EXPECT_EQ(run_lockstep(shell_workers(1, "echo a; echo b >&2")).out, "a\n");
  const CommandResult result =
      run_lockstep(shell_workers(2, "echo a; echo b >&2"));
  EXPECT_THAT(sorted_lines(result.out),
              ElementsAre("[rank 0] a", "[rank 1] a"));
  EXPECT_THAT(sorted_lines(result.err),
              ElementsAre("[rank 0] b", "[rank 1] b"));
}

// A busy machine may delay a rank by more than a line waits, so the test looks
// several times.
TEST(Run, ShowsALineOfSeveralRanksOnceWhenAsked) {
  auto arguments = shell_workers(3, "echo own $RANK; echo ready; echo bad >&2");
  arguments.insert(arguments.begin() + 1, "--fold");
  constexpr int kMostTries = 50;
  bool folded = false;
  for (int i = 0; i < kMostTries && !folded; ++i) {
    const CommandResult result = run_lockstep(arguments);
    ASSERT_EQ(result.exit_code, 0) << result.err;
    for (const char* own :
         {"[rank 0] own 0\n", "[rank 1] own 1\n", "[rank 2] own 2\n"})
      ASSERT_THAT(result.out, HasSubstr(own));
    folded = result.out.ends_with("[ranks 0-2] ready\n") &&
             result.err == "[ranks 0-2] bad\n";
  }
  EXPECT_TRUE(folded);
}

TEST(Run, KeepsEachRanksOutputInALogWhenAsked) {
  const TestDirectory folder;
  const std::string logs = folder / "deep/logs";
  auto arguments = shell_workers(2, "echo out $RANK; echo err $RANK >&2");
  arguments.insert(arguments.begin() + 1, {"--log-dir", logs});
  EXPECT_EQ(run_lockstep(arguments).exit_code, 0);
  for (const std::string rank : {"0", "1"}) {
    std::ifstream file(logs + "/rank-" + rank + ".log");
    std::string text(std::istreambuf_iterator<char>(file), {});
    EXPECT_THAT(sorted_lines(text), ElementsAre("err " + rank, "out " + rank));
  }
}

TEST(Run, RefusesALogFolderThatARunningJobUses) {
  const TestDirectory folder;
  const Gate go_on;
  const auto with_logs = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin() + 1, {"--log-dir", folder.path()});
    return arguments;
  };
  LaunchedCommand first(
      with_logs(shell_workers(1, "echo first; " + go_on.wait() + "echo last")));
  ASSERT_TRUE(first.wait_for("first\n"));
  const CommandResult second =
      run_lockstep(with_logs(shell_workers(2, "echo second")));
  EXPECT_EQ(second.exit_code, 2);
  EXPECT_THAT(second.err, HasSubstr("still running writes " +
                                    (folder / "rank-0.log").string()));
  go_on.open();
  EXPECT_EQ(first.finish().exit_code, 0);
  EXPECT_EQ(contents(folder / "rank-0.log"), "first\nlast\n");
  EXPECT_EQ(run_lockstep(with_logs(shell_workers(1, "echo third"))).exit_code,
            0);
  EXPECT_EQ(contents(folder / "rank-0.log"), "third\n");
  // The earlier job's log is kept, under the next number.
  EXPECT_EQ(contents(folder / "rank-0.log.1"), "first\nlast\n");
  run_lockstep(with_logs(shell_workers(1, "echo fourth")));
  EXPECT_EQ(contents(folder / "rank-0.log"), "fourth\n");
  EXPECT_EQ(contents(folder / "rank-0.log.2"), "third\n");
}

// Issue 21, point 5: rank 0 ends by an exception because rank 1 has ended.
TEST(Run, BlamesTheRankThatEndedFirstAndExitsWithItsCode) {
  const TestDirectory folder;
  const std::string pipe = folder / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  const CommandResult result = run_lockstep(shell_workers(
      2, "if [ $RANK = 1 ]; then exec 9>" + pipe +
             "; echo bad input >&2; exit 3; fi; cat <" + pipe + "; " +
             note_in_shell("peer_gone", 1) + "; kill -SEGV $$"));
  EXPECT_EQ(result.exit_code, 3) << result.err;
  EXPECT_THAT(result.err,
              AllOf(HasSubstr("rank 1 of 2 exited with code 3"),
                    HasSubstr("bad input"), Not(HasSubstr("SIGSEGV"))));
}

TEST(Run, ListsEveryCollectiveInOrderWhereTheLogIsAtDebug) {
  const std::string out =
      run_lockstep({"run", "-n", "2", LOCKSTEP_COMM_RANKS, "die"},
                   {"LOCKSTEP_LOG=debug", "EXIT_CODE=1"})
          .err;
  const std::string line = "[rank 0] lockstep debug: rank 0 of 2 calls barrier";
  EXPECT_THAT(out, HasSubstr(line + " #1 (group \"default\")\n"));
  EXPECT_LT(out.find(line + " #1"), out.find(line + " #2"));
}

TEST(Run, LetsSurvivorsSayHowARankEnded) {
  // Ignores SIGTERM, because the launcher may send it before they have printed.
  const auto job =
      shell_workers(3, "trap '' TERM; exec " LOCKSTEP_COMM_RANKS " die");
  EXPECT_THAT(run_lockstep(job).out,
              AllOf(HasSubstr("[rank 0] PeerFailure of rank 1"),
                    HasSubstr("[rank 2] PeerFailure of rank 1"),
                    HasSubstr("its process was killed by signal 9 (SIGKILL)")));
  const CommandResult returned = run_lockstep(job, {"EXIT_CODE=3"});
  EXPECT_EQ(returned.exit_code, 3);
  EXPECT_THAT(returned.out, HasSubstr("its process exited with code 3"));
}

TEST(Run, SaysInOneLineThatAProgramIsMissing) {
  const CommandResult result = run_lockstep({"run", "-n", "2", "no-such-one"});
  EXPECT_EQ(result.exit_code, 127);
  EXPECT_EQ(result.err,
            "lockstep: cannot start \"no-such-one\": No such file or "
            "directory\n");
}

// Issue 43: it ended by a SIGSEGV without a word.
TEST(Run, SaysThatTheStackIsTooSmall) {
  const CommandResult result = run_lockstep(shell_workers(
      1, "ulimit -s 64; exec " + std::string(LOCKSTEP_COMMAND) + " run true"));
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(
      result.err,
      HasSubstr("lockstep: the stack is limited to 64 KiB (ulimit -s)"));
}

TEST(Run, SaysInOneLineThatAFileIsNoProgram) {
  const CommandResult result = run_lockstep({"run", "/etc/passwd"});
  EXPECT_EQ(result.exit_code, 126);
  EXPECT_EQ(result.err,
            "lockstep: cannot start \"/etc/passwd\": Permission denied\n");
}

TEST(Run, SaysWhenTheKernelRefusesAProgram) {
  const std::string path = testing::TempDir() + "lockstep-bad-interpreter";
  std::ofstream(path) << "#!/no/such/interpreter\n";
  std::filesystem::permissions(path, std::filesystem::perms::owner_all);
  LaunchedCommand command({"run", "-n", "2", path});
  const CommandResult result = command.finish();
  EXPECT_EQ(result.exit_code, 127);
  EXPECT_THAT(result.err, StartsWith("lockstep: cannot start"));
  EXPECT_FALSE(command.something_is_left());
  std::filesystem::remove(path);
}

TEST(Run, RefusesAMasterPortThatIsInUse) {
  const FileDescriptor listener(::socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  ASSERT_EQ(::bind(listener.get(), generic, size), 0);
  ASSERT_EQ(::listen(listener.get(), 1), 0);
  ASSERT_EQ(::getsockname(listener.get(), generic, &size), 0);
  const std::string port = std::to_string(ntohs(address.sin_port));
  const CommandResult result =
      run_lockstep({"run", "--master-port", port, "true"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("port " + port + " is in use"));
}

TEST(Run, EndsUsageErrorsWithTwoAndOneLine) {
  for (const auto& arguments :
       std::vector<std::vector<std::string>>{{},
                                             {"rum"},
                                             {"run"},
                                             {"run", "-n", "0", "true"},
                                             {"run", "--nnodes", "2", "true"},
                                             {"run", "--no-such-flag", "true"},
                                             {"run", "--hostfile", "/no", "x"},
                                             {"train", "--batch-size", "0"},
                                             {"train", "--model", "resnet"},
                                             {"version", "--long"}}) {
    const CommandResult result = run_lockstep(arguments);
    EXPECT_EQ(result.exit_code, 2) << result.err;
    EXPECT_EQ(result.out, "");
    EXPECT_THAT(result.err,
                AllOf(StartsWith("lockstep: "), MatchesRegex("[^\n]+\n")));
  }
}

TEST(Run, SaysWhichFlagsHaveNoEffect) {
  const CommandResult result =
      run_lockstep({"run", "--standalone", "--rdzv-endpoint", "a:1", "true"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.err, StartsWith("lockstep: --rdzv-endpoint a:1 has no "));
}

TEST(Run, PassesArgumentsAsTheyAre) {
  EXPECT_EQ(run_lockstep({"run", "printf", "<%s>", "a b", "", "*", "-n"}).out,
            "<a b><><*><-n>");
}

TEST(DryRun, ShowsTheRanksAndStartsNothing) {
  const CommandResult result =
      run_lockstep({"run", "-n", "2", "--bind", "none", "--dry-run", "sh", "-c",
                    "echo started"},
                   {"OMP_NUM_THREADS=3"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out,
              testing::MatchesRegex("command: /[a-z/]*/sh -c echo started\n"
                                    "rank +cores .*\n"
                                    "0 +any +3 +all\n1 +any +3 +all\n"));
}

TEST(DryRun, ShowsTheCoresOfEachBinding) {
  const auto cores_of = [](const char* binding) {
    return run_lockstep(
               {"run", "-n", "2", "--bind", binding, "--dry-run", "true"})
        .out;
  };
  if (allowed_cores().size() < 2)
    GTEST_SKIP() << "needs two cores and no quota";
  EXPECT_THAT(cores_of("core"), Not(HasSubstr("any")));
  for (const char* binding : {"socket", "numa"})
    EXPECT_THAT(cores_of(binding), Not(HasSubstr("any")));
}

TEST(DryRun, ShowsTheHostsOfAJob) {
  EXPECT_EQ(run_lockstep({"run", "-H", "a:2,b", "--dry-run", "true"}).out,
            "node rank  host  ranks\n"
            "0          a     2\n"
            "1          b     as -n says there\n");
}

TEST(DryRun, FailsWhereThereIsNoSuchProgram) {
  EXPECT_EQ(run_lockstep({"run", "--dry-run", "no-such-program"}).exit_code,
            127);
}

}  // namespace
}  // namespace lockstep
