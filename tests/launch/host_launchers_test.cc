// One command that starts the ranks of several hosts: `lockstep run -H`. A
// shell script takes the place of ssh, and this machine that of the hosts; ssh
// itself and separate networks: tests/hosts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "launched_command.h"
#include "lockstep/base/error.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

using testing::AllOf;
using testing::AnyOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

class HostLaunchers : public testing::Test {
 protected:
  HostLaunchers() {
    // The words for the host's shell follow its name; a script of the test's
    // own may stand in for a host.
    std::ofstream(ssh_) << "#!/bin/sh\nhost=$1\nshift\necho \"$host $*\" >>"
                        << log_ << "\n[ ! -x " << folder_.path().string()
                        << "/$host ] || exec " << folder_.path().string()
                        << "/$host \"$@\"\nexec sh -c \"$*\"\n";
    make_executable(ssh_);
  }

  static void make_executable(const std::string& file) {
    fs::permissions(file, fs::perms::owner_all);
  }

  // What ssh does instead for this host.
  void set_host(const std::string& host, const std::string& script) const {
    const std::string file = folder_ / host;
    std::ofstream(file) << "#!/bin/sh\n" << script << "\n";
    make_executable(file);
  }

  // Its launcher is killed once the gate opens.
  void set_host_that_is_lost(const std::string& host, const Gate& gate) const {
    set_host(host, "exec 3<&0; sh -c \"exec $*\" <&3 & read line <" +
                       gate.path() + "; kill -9 $!; wait; exit 255");
  }

  std::vector<std::string> arguments(const std::string& hosts,
                                     const std::string& script,
                                     std::vector<std::string> more = {}) const {
    std::vector<std::string> all{"run", "-H",           hosts,      "--ssh",
                                 ssh_,  "--local-addr", "127.0.0.1"};
    if (more.empty() || more.front() != "--grace")
      all.insert(all.end(), {"--grace", "0.5"});
    all.insert(all.end(), more.begin(), more.end());
    all.insert(all.end(), {"sh", "-c", script});
    return all;
  }

  CommandResult run(const std::string& hosts, const std::string& script,
                    const std::vector<std::string>& more = {},
                    const std::vector<std::string>& environment = {}) const {
    return run_lockstep(arguments(hosts, script, more), environment);
  }

  std::unique_ptr<LaunchedCommand> start(
      const std::string& hosts, const std::string& script,
      const std::vector<std::string>& more = {}) const {
    return std::make_unique<LaunchedCommand>(arguments(hosts, script, more));
  }

  // Runs for long beside another host, and ends without one.
  static constexpr const char* kUntilAlone =
      "if [ $GROUP_WORLD_SIZE = 2 ]; then echo began; exec sleep 600; fi; "
      "echo alone";

  TestDirectory folder_;
  const std::string ssh_ = folder_ / "ssh-of-this-test";
  const std::string log_ = folder_ / "log";
};

TEST_F(HostLaunchers, StartTheRanksOfAllHostsInTheirOrder) {
  const CommandResult result =
      run("far:2,127.0.0.1,away:1",
          "echo $RANK of $WORLD_SIZE, $LOCAL_RANK of $LOCAL_WORLD_SIZE, "
          "$GROUP_RANK of $GROUP_WORLD_SIZE");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(sorted_lines(result.out),
              ElementsAre("[rank 0] 0 of 4, 0 of 2, 0 of 3",
                          "[rank 1] 1 of 4, 1 of 2, 0 of 3",
                          "[rank 2] 2 of 4, 0 of 1, 1 of 3",
                          "[rank 3] 3 of 4, 0 of 1, 2 of 3"));
  // This machine needs no ssh.
  EXPECT_THAT(contents(log_), Not(HasSubstr("127.0.0.1")));
}

TEST_F(HostLaunchers, TakeTheHostsFromAFile) {
  const std::string file = folder_ / "hosts";
  std::ofstream(file) << "far slots=2  # in the cellar\nlocalhost\n";
  const CommandResult result =
      run_lockstep({"run", "--hostfile", file, "--ssh", ssh_, "--local-addr",
                    "127.0.0.1", "sh", "-c", "echo $RANK of $WORLD_SIZE"});
  EXPECT_THAT(
      sorted_lines(result.out),
      ElementsAre("[rank 0] 0 of 3", "[rank 1] 1 of 3", "[rank 2] 2 of 3"))
      << result.err;
}

TEST_F(HostLaunchers, RunAProgramOfOursAsOneGroup) {
  const CommandResult result =
      run("far:2,away:2", "exec " LOCKSTEP_COMM_RANKS " barrier");
  EXPECT_EQ(result.exit_code, 0) << result.err;
}

TEST_F(HostLaunchers, AreAJobOfOneHostToo) {
  EXPECT_EQ(run("localhost:2", "echo $RANK").exit_code, 0);
  EXPECT_EQ(run("far", "exit 3").exit_code, 3);
}

TEST_F(HostLaunchers, PassOnArgumentsDirectoryAndVariables) {
  const CommandResult result = run_lockstep(
      arguments("far",
                "pwd; printf '%s|' \"$@\"; echo $OMP_NUM_THREADS $DATA $A",
                {"-x", "DATA", "-x", "A=b c"}),
      {"OMP_NUM_THREADS=3", "DATA=here"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr(fs::current_path().string()),
                                HasSubstr("3 here b c\n")));
  std::vector<std::string> words = arguments("far", "printf '%s|' \"$@\"");
  words.insert(words.end(), {"sh", "it's \"$x\"", "a\nb", "", "-H"});
  EXPECT_EQ(run_lockstep(words).out, "it's \"$x\"|a\nb||-H|");
}

TEST_F(HostLaunchers, ShowTheTokenOnNoCommandLine) {
  const CommandResult result = run("far", "tr '\\0' ' ' </proc/$PPID/cmdline",
                                   {}, {"LOCKSTEP_TOKEN=very secret"});
  EXPECT_THAT(result.out, HasSubstr("host-launcher"));
  EXPECT_THAT(result.out + contents(log_), Not(HasSubstr("very secret")));
}

TEST_F(HostLaunchers, ExitWithTheCodeOfTheRankThatFailedFirst) {
  const Gate never;
  const auto job =
      start("far:2,away:2", "[ $RANK != 3 ] || exit 7; " + never.wait());
  const CommandResult result = job->finish();
  EXPECT_EQ(result.exit_code, 7);
  EXPECT_THAT(result.err, AllOf(HasSubstr("rank 3 of 4 exited with code 7"),
                                HasSubstr("ended on every host: rank 3")));
  EXPECT_TRUE(job->wait_until_nothing_is_left());
}

TEST_F(HostLaunchers, StartTheWorkersAgainAfterAFailure) {
  const CommandResult result =
      run("far,away",
          "echo start $TORCHELASTIC_RESTART_COUNT; "
          "[ $RANK = 0 ] || exit $((1 - TORCHELASTIC_RESTART_COUNT))",
          {"--max-restarts", "1"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("[rank 1] start 1"));
  EXPECT_THAT(result.err, HasSubstr("restart 1 of 1"));
}

TEST_F(HostLaunchers, EndEverywhereWhenTheUserAsks) {
  const Gate never;
  const auto job = start("far,away", "echo began; " + never.wait());
  ASSERT_TRUE(job->wait_for("began", 2));
  job->signal(SIGINT);
  EXPECT_EQ(job->finish().exit_code, 128 + SIGINT);
  EXPECT_TRUE(job->wait_until_nothing_is_left());
}

TEST_F(HostLaunchers, SayThatTheJobHasSavedItsStateOnSigterm) {
  const Gate never;
  const auto job =
      start("far,away",
            "trap 'exit 75' TERM; echo began; while :; do sleep 0.1; done",
            {"--grace", "30"});
  ASSERT_TRUE(job->wait_for("began", 2));
  job->signal(SIGTERM);
  EXPECT_EQ(job->finish().exit_code, 75);
}

TEST_F(HostLaunchers, EndEverywhereWhenTheirParentIsKilled) {
  const Gate never;
  const auto job = start("far,away", "echo began; " + never.wait());
  ASSERT_TRUE(job->wait_for("began", 2));
  job->signal(SIGKILL);
  EXPECT_TRUE(job->wait_until_nothing_is_left());
}

TEST_F(HostLaunchers, EndWhatTheirRanksStartedWhenTheirParentIsKilled) {
  const auto job = start("localhost,far", "echo began; sleep 600; true");
  ASSERT_TRUE(job->wait_for("began", 2));
  job->signal(SIGKILL);
  EXPECT_TRUE(job->wait_until_nothing_is_left());
}

TEST_F(HostLaunchers, SayWhatToTryWhereSshFails) {
  set_host("away", "echo 'Permission denied (publickey).' >&2; exit 255");
  const auto job = start("far,away", "echo never");
  const CommandResult result = job->finish();
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err,
              AllOf(HasSubstr("Permission denied (publickey)."),
                    HasSubstr("away is lost to the job: "),
                    HasSubstr("exited with code 255"),
                    HasSubstr("away true must work without a password")));
  EXPECT_THAT(result.out, Not(HasSubstr("never")));
  EXPECT_TRUE(job->wait_until_nothing_is_left());
}

TEST_F(HostLaunchers, SayThatAHostLacksTheProgram) {
  set_host("away", "echo 'sh: not found' >&2; exit 127");
  EXPECT_THAT(run("far,away", "echo never").err,
              AllOf(HasSubstr("exited with code 127"),
                    HasSubstr("install Lockstep as /")));
}

TEST_F(HostLaunchers, GoOnWithoutAHostThatTheJobDoesNotNeed) {
  set_host("away", "exit 255");
  const CommandResult result =
      run("far,away", "echo $RANK of $WORLD_SIZE",
          {"--nnodes", "1:2", "--rdzv-conf", "last_call_timeout=0.5"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, "0 of 1\n");
}

TEST_F(HostLaunchers, GoOnWithoutAHostThatIsLostLater) {
  const Gate began;
  set_host_that_is_lost("away", began);
  const auto job = start("far,away", kUntilAlone,
                         {"--nnodes", "1:2", "--max-restarts", "1"});
  ASSERT_TRUE(job->wait_for("began", 2));
  began.open();
  const CommandResult result = job->finish();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("alone"));
  EXPECT_THAT(
      result.err,
      AllOf(HasSubstr("away is lost to the job: its launcher, or the "
                      "connection to it, exited with code 255"),
            HasSubstr("restart 1 of 1"), Not(HasSubstr("ssh-copy-id"))));
  EXPECT_TRUE(job->wait_until_nothing_is_left());
}

TEST_F(HostLaunchers, GoOnWithoutAHostWhoseConnectionBreaks) {
  const Gate broken;
  const std::string pipe = folder_ / "pipe";
  set_host("away", "mkfifo " + pipe + "; sh -c \"$*\" <" + pipe + " & exec 3>" +
                       pipe +
                       "; IFS= read -r order; printf '%s\\n' \"$order\" >&3; "
                       "read line <" +
                       broken.path() + "; exec 3>&-; wait; exit 255");
  const auto job = start("far,away", kUntilAlone,
                         {"--nnodes", "1:2", "--max-restarts", "1"});
  ASSERT_TRUE(job->wait_for("began", 2));
  broken.open();
  const CommandResult result = job->finish();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("alone"));
  EXPECT_THAT(result.err, AllOf(HasSubstr("lost its connection"),
                                Not(HasSubstr("received SIGTERM"))));
  EXPECT_TRUE(job->wait_until_nothing_is_left());
}

TEST_F(HostLaunchers, BlameALostHostAndNotThoseThatEndBecauseOfIt) {
  const Gate lost;
  set_host_that_is_lost("away", lost);
  const auto job =
      start("far,away,third",
            "trap 'exit 75' TERM; echo began; while :; do sleep 0.1; done",
            {"--grace", "30", "--max-restarts", "3"});
  ASSERT_TRUE(job->wait_for("began", 3));
  lost.open();
  const CommandResult result = job->finish();
  EXPECT_EQ(result.exit_code, 1) << result.err;
  EXPECT_THAT(result.err, AllOf(HasSubstr("away is lost to the job"),
                                HasSubstr("the job ended on every host: "),
                                Not(HasSubstr("far is lost")),
                                Not(HasSubstr("third is lost")),
                                Not(HasSubstr("SIGTERM"))));
  EXPECT_TRUE(job->wait_until_nothing_is_left());
}

TEST_F(HostLaunchers, DoNotWaitForAHostWithoutRanksAtTheEnd) {
  set_host("hung", "exec sleep 600");
  const auto job =
      start("far,hung", "echo $RANK of $WORLD_SIZE",
            {"--nnodes", "1:2", "--rdzv-conf", "last_call_timeout=0.1"});
  const CommandResult result = job->finish();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, "0 of 1\n");
  EXPECT_THAT(result.err, Not(HasSubstr("hung")));
  EXPECT_TRUE(job->wait_until_nothing_is_left());
}

TEST_F(HostLaunchers, NameAHostThatDoesNotComeAndEndWithoutIt) {
  set_host("hung", "exec sleep 600");
  const auto job = start("hung,far", "echo never");
  ASSERT_TRUE(job->wait_for("lockstep: waits for hung: ssh has not started"));
  job->signal(SIGINT);
  EXPECT_EQ(job->finish().exit_code, 128 + SIGINT);
  EXPECT_TRUE(job->wait_until_nothing_is_left());
}

TEST_F(HostLaunchers, TakeAnInterfaceAsTheirAddress) {
  const auto code = [&](const char* address) {
    return run_lockstep({"run", "-H", "far", "--ssh", ssh_, "--local-addr",
                         address, "true"})
        .exit_code;
  };
  EXPECT_EQ(code("lo"), 0);
  EXPECT_EQ(code("no-such-interface"), 2);
}

TEST_F(HostLaunchers, TagEachPieceOfALongLine) {
  const CommandResult result =
      run("far,away", "head -c 20000 /dev/zero | tr '\\0' x; echo");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  for (const std::string& line : sorted_lines(result.out))
    EXPECT_THAT(line, testing::StartsWith("[rank ")) << line.size();
}

TEST_F(HostLaunchers, PassTheBytesOfASingleHostUnchanged) {
  EXPECT_EQ(run("far", "printf 'a\\rb\\nend'").out, "a\rb\nend");
}

TEST_F(HostLaunchers, RefuseAHostWithoutTheDirectory) {
  const std::string gone = folder_ / "gone";
  fs::create_directory(gone);
  set_host("away", "rmdir " + gone + "; exec sh -c \"$*\"");
  const fs::path before = fs::current_path();
  fs::current_path(gone);
  const CommandResult result = run("away", "echo never");
  fs::current_path(before);
  EXPECT_THAT(result.err, HasSubstr("away has no directory " + gone));
  EXPECT_EQ(result.exit_code, 1);
}

TEST_F(HostLaunchers, RefuseWrongArgumentsBeforeTheyStart) {
  for (const auto& more :
       std::vector<std::vector<std::string>>{{"--rdzv-endpoint", "a"},
                                             {"--node-rank", "1"},
                                             {"--standalone"},
                                             {"--nnodes", "3"},
                                             {"--hostfile", "b"},
                                             {"-x", "NOT_SET_HERE"},
                                             {"-n", "2"},
                                             {"--ssh", " "}}) {
    const CommandResult result = run("far:2,away:2", "echo never", more);
    EXPECT_EQ(result.exit_code, 2) << more.front();
    EXPECT_THAT(result.err, HasSubstr("lockstep: ")) << more.front();
    EXPECT_FALSE(fs::exists(log_)) << more.front();
  }
  EXPECT_EQ(run("far:0", "echo never").exit_code, 2);
  EXPECT_EQ(run("far", "echo never", {}, {"LOCKSTEP_TOKEN=\xff"}).exit_code, 2);
}

TEST_F(HostLaunchers, SayThatThereIsNoSsh) {
  const CommandResult result =
      run_lockstep({"run", "-H", "far", "--ssh", "/no/ssh", "--local-addr",
                    "127.0.0.1", "true"});
  EXPECT_EQ(result.exit_code, 127);
  EXPECT_THAT(result.err, HasSubstr("/no/ssh"));
}

TEST_F(HostLaunchers, SayThatNoHostHasTheProgramOfTheRanks) {
  EXPECT_EQ(run_lockstep({"run", "-H", "far", "--ssh", ssh_, "--local-addr",
                          "127.0.0.1", "/no/such"})
                .exit_code,
            127);
}

TEST_F(HostLaunchers, AreNotStartedByUsersThemselves) {
  const CommandResult result = run_lockstep({"host-launcher"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("lockstep run -H"));
}

TEST_F(HostLaunchers, SayThatOutputMayBeMissingWhereSshFailsAtTheEnd) {
  set_host("away", "sh -c \"$*\"; exit 255");
  const CommandResult result = run("far,away", "true");
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("the ranks on away ended well, but its "
                                    "launcher exited with code 255"));
}

TEST_F(HostLaunchers, FailWhereTheirOutputCannotBeWritten) {
  std::string command = LOCKSTEP_COMMAND;
  for (const std::string& argument : arguments("far,away", "echo line"))
    command += " '" + argument + "'";
  EXPECT_EQ(WEXITSTATUS(std::system((command + " >/dev/full").c_str())), 1);
}

TEST_F(HostLaunchers, EndWithTheirReader) {
  const auto job = start("far,away", "while echo line; do :; done");
  ASSERT_TRUE(job->wait_for("line"));
  job->hang_up();
  EXPECT_TRUE(job->wait_until_nothing_is_left());
}

TEST_F(HostLaunchers, RefuseThisMachineUnderTwoNames) {
  const CommandResult result = run("localhost:1,127.0.0.1:1", "echo never");
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("localhost and 127.0.0.1 are both this"));
}

}  // namespace
}  // namespace lockstep
