// One job that several launchers run together: `lockstep run --nnodes`. On one
// machine they meet at a port of it, as launchers of several hosts do.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "launched_command.h"
#include "lockstep/store/store.h"
#include "src/base/testing/test_directory.h"
#include "src/faults/testing/note_in_shell.h"
#include "src/net/free_port.h"
#include "src/store/tcp_store_server.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

class Nodes : public testing::Test {
 protected:
  // The arguments of a launcher with `workers` shells that run `script`.
  std::vector<std::string> launcher(int workers, const std::string& script,
                                    std::vector<std::string> more = {}) const {
    std::vector<std::string> arguments{"run",
                                       "-n",
                                       std::to_string(workers),
                                       "--rdzv-endpoint",
                                       "127.0.0.1:" + std::to_string(port_),
                                       "--grace",
                                       "0.5"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    arguments.insert(arguments.end(), {"sh", "-c", script});
    return arguments;
  }

  std::unique_ptr<LaunchedCommand> start(
      int workers, const std::string& script,
      const std::vector<std::string>& more) const {
    return std::make_unique<LaunchedCommand>(launcher(workers, script, more),
                                             kToken);
  }

  // The store at which the launchers meet.
  std::shared_ptr<Store> rendezvous() const {
    return open_store(
        "tcp://127.0.0.1:" + std::to_string(port_),
        {.token = "of these tests", .deadline = std::chrono::minutes(1)});
  }

  const std::vector<std::string> kToken{"LOCKSTEP_TOKEN=of these tests"};

  const std::uint16_t port_ = find_free_port();
};

TEST_F(Nodes, GiveEveryWorkerItsRankInTheWholeJob) {
  const std::string script =
      "echo $RANK of $WORLD_SIZE, $LOCAL_RANK of $LOCAL_WORLD_SIZE, "
      "$GROUP_RANK of $GROUP_WORLD_SIZE, $TORCHELASTIC_RUN_ID";
  const auto second =
      start(1, script, {"--nnodes", "2", "--node-rank", "1", "--rdzv-id", "a"});
  const auto first =
      start(2, script, {"--nnodes", "2", "--node-rank", "0", "--rdzv-id", "a"});
  EXPECT_THAT(sorted_lines(first->finish().out),
              ElementsAre("[rank 0] 0 of 3, 0 of 2, 0 of 2, a",
                          "[rank 1] 1 of 3, 1 of 2, 0 of 2, a"));
  EXPECT_THAT(sorted_lines(second->finish().out),
              ElementsAre("[rank 2] 2 of 3, 0 of 1, 1 of 2, a"));
}

TEST_F(Nodes, RunAProgramOfOursAsOneGroup) {
  std::vector<std::unique_ptr<LaunchedCommand>> launchers;
  for (int i = 0; i < 3; ++i)
    launchers.push_back(
        start(2, "exec " LOCKSTEP_COMM_RANKS " barrier", {"--nnodes", "3"}));
  for (const auto& launcher : launchers) {
    const CommandResult result = launcher->finish();
    EXPECT_EQ(result.exit_code, 0) << result.err;
  }
}

TEST_F(Nodes, EndWithTheCodeOfTheWorkerThatFailedFirst) {
  const Gate never;
  const std::string script = "[ $RANK != 3 ] || exit 7; " + never.wait();
  const auto first = start(2, script, {"--nnodes", "2", "--node-rank", "0"});
  const auto second = start(2, script, {"--nnodes", "2", "--node-rank", "1"});
  const CommandResult one = first->finish();
  const CommandResult other = second->finish();
  EXPECT_EQ(one.exit_code, 7);
  EXPECT_EQ(other.exit_code, 7);
  EXPECT_THAT(one.err, AllOf(HasSubstr("rank 3 exited with code 7 on "),
                             Not(HasSubstr("program:"))));
  EXPECT_THAT(other.err, HasSubstr("rank 3 of 4 exited with code 7"));
  EXPECT_TRUE(first->wait_until_nothing_is_left());
}

// The launcher of the worker that failed first is stopped meanwhile, so that it
// reports last.
TEST_F(Nodes, BlameTheWorkerThatFailedAndNotTheOneThatMissedIt) {
  const Gate fail;
  const Gate miss;
  const std::string script = "echo began; if [ $RANK = 1 ]; then " +
                             fail.wait() + "exit 7; fi; " + miss.wait() +
                             note_in_shell("peer_gone", 1) + "; exit 1";
  const auto first = start(1, script, {"--nnodes", "2", "--node-rank", "0"});
  const auto second = start(1, script, {"--nnodes", "2", "--node-rank", "1"});
  ASSERT_TRUE(first->wait_for("began"));
  ASSERT_TRUE(second->wait_for("began"));
  const auto store = rendezvous();
  second->signal(SIGSTOP);
  ASSERT_TRUE(second->wait_until_stopped());
  fail.open();
  miss.open();
  EXPECT_THAT(to_text(store->get("nodes/0/fault", std::chrono::minutes(1))),
              HasSubstr("rank 0 exited with code 1"));
  second->signal(SIGCONT);
  const CommandResult missed = first->finish();
  EXPECT_EQ(missed.exit_code, 7);
  EXPECT_THAT(missed.err, HasSubstr("ended on every host: rank 1 exited with "
                                    "code 7"));
  EXPECT_EQ(second->finish().exit_code, 7);
}

TEST_F(Nodes, UseTheMasterPortThatTheUserChose) {
  const std::string port = std::to_string(find_free_port());
  const std::vector<std::string> flags{"--nnodes", "2", "--master-port", port};
  const auto first = start(1, "echo $MASTER_PORT", flags);
  const auto second = start(1, "echo $MASTER_PORT", flags);
  for (const auto& launcher : {first.get(), second.get()})
    EXPECT_THAT(launcher->finish().out, HasSubstr("] " + port + "\n"));
}

TEST_F(Nodes, StartAgainOnEveryHost) {
  const Gate never;
  const std::string script =
      "echo $RANK restart $TORCHELASTIC_RESTART_COUNT; "
      "[ $TORCHELASTIC_RESTART_COUNT = 0 ] || exit 0; "
      "[ $RANK != 1 ] || kill -KILL $$; " +
      never.wait();
  const std::vector<std::string> flags{"--nnodes", "2", "--max-restarts", "3"};
  const auto first = start(1, script, flags);
  const auto second = start(1, script, flags);
  for (const auto& launcher : {first.get(), second.get()}) {
    const CommandResult result = launcher->finish();
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_THAT(result.out, HasSubstr(" restart 1\n"));
    EXPECT_THAT(result.err,
                HasSubstr("starts the workers again (restart 1 of 3): rank 1 "
                          "was killed by signal 9 (SIGKILL) on "));
  }
}

TEST_F(Nodes, GoOnWithoutAHostThatIsLost) {
  const Gate never;
  const std::string script =
      "echo began; echo world of $WORLD_SIZE; [ $WORLD_SIZE = 2 ] || " +
      never.wait();
  const std::vector<std::string> flags{"--nnodes", "2:3", "--max-restarts",
                                       "1"};
  const auto first = start(1, script, flags);
  // It came first, so it serves the rendezvous.
  ASSERT_TRUE(first->wait_for("waits for 2:3 hosts"));
  const auto second = start(1, script, flags);
  const auto third = start(1, script, flags);
  for (const auto& launcher : {first.get(), second.get(), third.get()})
    ASSERT_TRUE(launcher->wait_for("began"));
  third->signal(SIGKILL);
  for (const auto& launcher : {first.get(), second.get()}) {
    const CommandResult result = launcher->finish();
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_THAT(result.out, HasSubstr("world of 2\n"));
    EXPECT_THAT(result.err, HasSubstr("or the link to that host is down"));
  }
}

TEST_F(Nodes, TakeALateHostAtTheNextRestart) {
  const Gate late_has_come;
  const std::string script =
      "echo world of $WORLD_SIZE; [ $WORLD_SIZE = 3 ] && exit 0; "
      "[ $RANK = 0 ] || sleep 1000; " +
      late_has_come.wait() + " exit 3";
  const std::vector<std::string> flags{
      "--nnodes", "2:3",         "--max-restarts",
      "1",        "--rdzv-conf", "last_call_timeout=0.001"};
  const auto first = start(1, script, flags);
  const auto second = start(1, script, flags);
  ASSERT_TRUE(first->wait_for("world of 2\n"));
  ASSERT_TRUE(second->wait_for("world of 2\n"));
  const auto third = start(1, script, flags);
  ASSERT_TRUE(third->wait_for("takes part after the next restart"));
  late_has_come.open();
  for (const auto& launcher : {first.get(), second.get(), third.get()}) {
    const CommandResult result = launcher->finish();
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_THAT(result.out, HasSubstr("world of 3\n"));
  }
}

TEST_F(Nodes, EndAsTheJobDoesWhereTheyWaitForARestart) {
  const Gate may_end;
  const std::vector<std::string> flags{"--nnodes", "1:2", "--rdzv-conf",
                                       "last_call_timeout=0.001"};
  const auto first = start(1, "echo began; " + may_end.wait(), flags);
  ASSERT_TRUE(first->wait_for("began"));
  const auto spare = start(1, "echo began", flags);
  ASSERT_TRUE(spare->wait_for("takes part after the next restart"));
  may_end.open();
  EXPECT_EQ(first->finish().exit_code, 0);
  const CommandResult result = spare->finish();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("has ended, without workers of this host"));
}

// The test serves a rendezvous whose job is over.
TEST_F(Nodes, WaitUntilTheLastJobHasLeftTheEndpoint) {
  auto last =
      std::make_unique<TcpStoreServer>("127.0.0.1", port_, "of these tests");
  rendezvous()->set("nodes/over", to_bytes("{}"), std::chrono::minutes(1));
  const auto first = start(1, "true", {"--nnodes", "2"});
  ASSERT_TRUE(first->wait_for("the last job there ends at this moment"));
  last.reset();
  const auto second = start(1, "true", {"--nnodes", "2"});
  EXPECT_EQ(first->finish().exit_code, 0);
  EXPECT_EQ(second->finish().exit_code, 0);
}

TEST_F(Nodes, WaitForTheLauncherThatServes) {
  const auto other = start(1, "true", {"--nnodes", "2", "--node-rank", "1"});
  ASSERT_TRUE(other->wait_for("waits for the rendezvous at 127.0.0.1:"));
  const auto server = start(1, "true", {"--nnodes", "2", "--node-rank", "0"});
  EXPECT_EQ(server->finish().exit_code, 0);
  EXPECT_EQ(other->finish().exit_code, 0);
}

TEST_F(Nodes, SayWhyTheyDoNotReachTheRendezvous) {
  const CommandResult unknown = run_lockstep(
      {"run", "-n", "1", "--nnodes", "2", "--rdzv-endpoint",
       "no-such-host.invalid", "--rdzv-conf", "join_timeout=0.1", "true"},
      kToken);
  EXPECT_EQ(unknown.exit_code, 1);
  EXPECT_THAT(unknown.err,
              AllOf(HasSubstr("no launcher served the rendezvous at "
                              "no-such-host.invalid:29400"),
                    HasSubstr("next:")));
  const CommandResult wrong =
      start(1, "true", {"--nnodes", "2", "--local-addr", "192.0.2.1"})
          ->finish();
  EXPECT_EQ(wrong.exit_code, 2);
  EXPECT_THAT(wrong.err, HasSubstr("has no interface or address "
                                   "\"192.0.2.1\" (LOCKSTEP_INTERFACE, "
                                   "--local-addr)"));
}

TEST_F(Nodes, EndWhereTheRendezvousIsLost) {
  const Gate never;
  const std::string script = "echo began; " + never.wait();
  const auto server = start(1, script, {"--nnodes", "2", "--node-rank", "0"});
  const auto other = start(1, script, {"--nnodes", "2", "--node-rank", "1"});
  ASSERT_TRUE(server->wait_for("began"));
  ASSERT_TRUE(other->wait_for("began"));
  server->signal(SIGKILL);
  const CommandResult result = other->finish();
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, AllOf(HasSubstr("serves the rendezvous at 127.0.0.1"),
                                HasSubstr("start the job again"),
                                HasSubstr("\n             lockstep run -n 1 "),
                                HasSubstr(" --node-rank 1 sh -c '" + script)));
  EXPECT_TRUE(other->wait_until_nothing_is_left());
}

TEST_F(Nodes, AreRefusedWhereTheyDisagree) {
  const auto first = start(1, "true", {"--nnodes", "2", "--rdzv-id", "a"});
  ASSERT_TRUE(first->wait_for("waits for 2 hosts"));
  for (const auto& [flags, text] :
       std::vector<std::pair<std::vector<std::string>, std::string>>{
           {{"--nnodes", "2", "--rdzv-id", "b"}, "--rdzv-id is b here, but a"},
           {{"--nnodes", "3", "--rdzv-id", "a"}, "--nnodes is 3 here, but 2"},
           {{"--nnodes", "2", "--rdzv-id", "a", "--max-restarts", "1"},
            "--max-restarts is 1 here, but 0"}}) {
    const CommandResult result = start(1, "true", flags)->finish();
    EXPECT_EQ(result.exit_code, 2) << result.err;
    EXPECT_THAT(result.err, HasSubstr(text));
  }
  const CommandResult stranger =
      run_lockstep(launcher(1, "true", {"--nnodes", "2", "--rdzv-id", "a"}),
                   {"LOCKSTEP_TOKEN=another"});
  EXPECT_EQ(stranger.exit_code, 1);
  EXPECT_THAT(stranger.err, HasSubstr("LOCKSTEP_TOKEN"));
  const auto second = start(1, "true", {"--nnodes", "2", "--rdzv-id", "a"});
  EXPECT_EQ(first->finish().exit_code, 0);
  EXPECT_EQ(second->finish().exit_code, 0);
}

// The test serves the rendezvous of a launcher of an older version.
TEST_F(Nodes, AreRefusedWhereTheirVersionsDiffer) {
  const TcpStoreServer server("127.0.0.1", port_, "of these tests");
  rendezvous()->set(
      "nodes/agreement",
      to_bytes(R"({"version": "0.0.9", "job": "none", "least": 2, "most": 2,
                   "max_restarts": 0})"),
      std::chrono::minutes(1));
  const CommandResult result =
      start(1, "true", {"--nnodes", "2", "--node-rank", "1"})->finish();
  EXPECT_EQ(result.exit_code, 2) << result.err;
  EXPECT_THAT(result.err, AllOf(HasSubstr("the version of Lockstep is "),
                                HasSubstr("but 0.0.9 on the host that came "
                                          "first")));
}

// One after another, as hosts that come late.
TEST_F(Nodes, AreRefusedWhereTheirProgramsDiffer) {
  const TestDirectory folder;
  const auto start_program = [&](const std::string& host,
                                 const std::string& text,
                                 const std::string& before = "") {
    const auto file = folder / host / "train";
    std::filesystem::create_directory(folder / host);
    std::ofstream(file) << "#!/bin/sh\n" << text;
    std::filesystem::permissions(file, std::filesystem::perms::owner_all);
    auto arguments = launcher(
        1, "", {"--nnodes", "1:2", "--rdzv-conf", "last_call_timeout=60"});
    arguments.resize(arguments.size() - 3);
    if (!before.empty()) arguments.push_back(before);
    arguments.push_back(file.string());
    return std::make_unique<LaunchedCommand>(arguments, kToken);
  };
  const auto first = start_program("a", "exit 0");
  ASSERT_TRUE(first->wait_for("waits"));
  const CommandResult other = start_program("b", "exit  0")->finish();
  EXPECT_EQ(other.exit_code, 2) << other.err;
  EXPECT_THAT(other.err, AllOf(HasSubstr("/b/train has 17 bytes, hash "),
                               HasSubstr(" here, but 16 bytes, hash "),
                               HasSubstr("copy the program to every host")));
  // As the message says, a program behind "env" is not compared.
  const auto second = start_program("c", "true", "env");
  EXPECT_EQ(first->finish().exit_code, 0);
  EXPECT_EQ(second->finish().exit_code, 0);
}

TEST_F(Nodes, EndWhenTheUserInterruptsOneOfThem) {
  const Gate never;
  const std::string script = "echo began; " + never.wait();
  const auto waiting = start(1, script, {"--nnodes", "2"});
  ASSERT_TRUE(waiting->wait_for("waits for 2 hosts"));
  waiting->signal(SIGINT);
  EXPECT_EQ(waiting->finish().exit_code, 130);

  const std::vector<std::string> flags{"--nnodes", "2", "--max-restarts", "5"};
  const auto first = start(1, script, flags);
  const auto second = start(1, script, flags);
  ASSERT_TRUE(first->wait_for("began"));
  ASSERT_TRUE(second->wait_for("began"));
  second->signal(SIGTERM);
  for (const auto& launcher : {first.get(), second.get()}) {
    const CommandResult result = launcher->finish();
    EXPECT_EQ(result.exit_code, 143);
    EXPECT_THAT(result.err, HasSubstr("received SIGTERM"));
  }
}

// Rank 2 fails because SIGTERM has ended rank 0, before rank 1 has ended.
TEST_F(Nodes, DoNotStartAgainAfterTheUsersSignalThoughAnotherHostFailsFirst) {
  const TestDirectory folder;
  const std::string pipe = folder / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  const std::string script =
      "case $RANK in 0) exec 9>" + pipe + "; echo began; exec sleep 1000;; " +
      "1) trap '' TERM; echo began; while :; do sleep 1000; done;; " +
      "*) echo began; cat <" + pipe + "; exit 9;; esac";
  const std::vector<std::string> flags{"--nnodes", "2", "--max-restarts", "5"};
  auto numbered = [&](const char* rank) {
    auto all = flags;
    all.insert(all.end(), {"--node-rank", rank});
    return all;
  };
  const auto first = start(2, script, numbered("0"));
  const auto second = start(1, script, numbered("1"));
  ASSERT_TRUE(first->wait_for("began", 2));
  ASSERT_TRUE(second->wait_for("began"));
  first->signal(SIGTERM);
  for (const auto& launcher : {first.get(), second.get()}) {
    const CommandResult result = launcher->finish();
    EXPECT_EQ(result.exit_code, 143) << result.err;
    EXPECT_THAT(result.err, Not(HasSubstr("again")));
  }
}

TEST_F(Nodes, EndWhereOneOfThemCannotStartTheProgram) {
  const Gate never;
  const std::vector<std::string> flags{"--nnodes", "2", "--max-restarts", "5"};
  const auto first = start(1, never.wait(), flags);
  ASSERT_TRUE(first->wait_for("waits for 2 hosts"));
  auto arguments = launcher(1, "", flags);
  arguments.resize(arguments.size() - 3);
  arguments.push_back("/no/such/program");
  EXPECT_EQ(run_lockstep(arguments, kToken).exit_code, 127);
  const CommandResult result = first->finish();
  EXPECT_EQ(result.exit_code, 127);
  EXPECT_THAT(result.err, HasSubstr("cannot start \"/no/such/program\""));
}

TEST_F(Nodes, EndWhereTheRendezvousHoldsNonsense) {
  const auto first = start(1, "true", {"--nnodes", "2"});
  ASSERT_TRUE(first->wait_for("waits for 2 hosts"));
  const auto store = rendezvous();
  store->set("nodes/0/card/1", to_bytes("{"), std::chrono::minutes(1));
  const CommandResult result = first->finish();
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("another launcher sent \"{\""));
}

TEST_F(Nodes, SayWhoCameWhereTooFewDid) {
  const CommandResult result =
      start(1, "true", {"--nnodes", "2", "--rdzv-conf", "join_timeout=0.5"})
          ->finish();
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, AllOf(HasSubstr("only 1 of at least 2 hosts came"),
                                HasSubstr("next:")));
}

// A rank saves its state when it is asked to end.
const std::string kSaves = "trap 'exit 75' TERM; echo began; sleep 1000 & wait";

TEST_F(Nodes, SayStartAgainWhereTheWorkersOfEachHaveSavedTheirState) {
  const auto first = start(2, kSaves, {"--nnodes", "2"});
  const auto second = start(1, kSaves, {"--nnodes", "2"});
  ASSERT_TRUE(first->wait_for("began", 2));
  ASSERT_TRUE(second->wait_for("began"));
  first->signal(SIGTERM);
  EXPECT_EQ(first->finish().exit_code, 75);
  EXPECT_EQ(second->finish().exit_code, 75);
}

TEST(Run, SaysStartAgainOnlyWhereEveryRankHasSavedItsStateOrFinished) {
  const std::string ends = "trap 'exit 0' TERM; echo began; sleep 1000 & wait";
  const std::string dies = "echo began; exec sleep 1000";
  for (const auto& [other, code] :
       {std::pair(kSaves, 75), {ends, 75}, {dies, 143}}) {
    LaunchedCommand command(
        shell_workers(2, "[ $RANK = 0 ] || { " + kSaves + "; }; " + other));
    ASSERT_TRUE(command.wait_for("began", 2));
    command.signal(SIGTERM);
    EXPECT_EQ(command.finish().exit_code, code) << other;
  }
}

TEST(Restarts, BindTheMasterPortThatTheUserChoseAgain) {
  const std::string port = std::to_string(find_free_port());
  // Rank 0 leaves a connection behind that keeps the port for a while.
  const std::string script =
      "import os, socket, sys\n"
      "s = socket.create_server(('', int(os.environ['MASTER_PORT'])))\n"
      "c = socket.create_connection(s.getsockname())\n"
      "s.accept()[0].close()\n"
      "sys.exit(os.environ['TORCHELASTIC_RESTART_COUNT'] == '0')\n";
  EXPECT_EQ(run_lockstep({"run", "--max-restarts", "1", "--master-port", port,
                          "python3", "-c", script})
                .exit_code,
            0);
}

TEST(Restarts, StartTheWorkersOfThisHostAgain) {
  const std::string script =
      "echo $RANK restart $TORCHELASTIC_RESTART_COUNT of "
      "$TORCHELASTIC_MAX_RESTARTS; [ $TORCHELASTIC_RESTART_COUNT = 2 ] || "
      "exit 5";
  auto arguments = shell_workers(1, script);
  arguments.insert(arguments.begin() + 1, {"--max-restarts", "2"});
  const CommandResult result = run_lockstep(arguments);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out,
            "0 restart 0 of 2\n0 restart 1 of 2\n0 restart 2 of 2\n");
  arguments[2] = "1";
  EXPECT_EQ(run_lockstep(arguments).exit_code, 5);
}

TEST(Restarts, DoNotFollowTheUsersSignal) {
  const Gate never;
  auto arguments = shell_workers(1, "echo began; " + never.wait());
  arguments.insert(arguments.begin() + 1, {"--max-restarts", "9"});
  LaunchedCommand command(arguments);
  ASSERT_TRUE(command.wait_for("began"));
  command.signal(SIGINT);
  const CommandResult result = command.finish();
  EXPECT_EQ(result.exit_code, 130);
  EXPECT_THAT(result.err, Not(HasSubstr("again")));
}

TEST(Restarts, KeepTheLogsOfEachStart) {
  const TestDirectory folder;
  auto arguments =
      shell_workers(1, "echo start $TORCHELASTIC_RESTART_COUNT; exit 1");
  arguments.insert(arguments.begin() + 1,
                   {"--max-restarts", "1", "--log-dir", folder.path()});
  EXPECT_EQ(run_lockstep(arguments).exit_code, 1);
  EXPECT_EQ(contents(folder / "rank-0.log"), "start 0\n");
  EXPECT_EQ(contents(folder / "restart-1/rank-0.log"), "start 1\n");
}

TEST(Run, GivesRanksAsManyDescriptorsAsTheSystemAllows) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit scarce{.rlim_cur = 200, .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &scarce), 0);
  const CommandResult result = run_lockstep({"run", "sh", "-c", "ulimit -n"});
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(result.out,
            std::to_string(std::min<rlim_t>(before.rlim_max, 65536)) + "\n");
}

TEST(Run, StartsPythonForAFileOfPython) {
  const TestDirectory folder;
  const std::string script = folder / "script.py";
  std::ofstream(script) << "import os, sys\nprint(os.environ['RANK'], "
                           "sys.argv[1:])\n";
  EXPECT_EQ(run_lockstep({"run", script, "-x"}).out, "0 ['-x']\n");
  EXPECT_EQ(run_lockstep({"run", "--no-python", script}).exit_code, 126);
  std::filesystem::permissions(script, std::filesystem::perms::owner_all);
  EXPECT_EQ(run_lockstep({"run", script, "-x"}).out, "0 ['-x']\n");
  EXPECT_EQ(run_lockstep({"run", "-m", "platform", "--terse"}).exit_code, 0);
  EXPECT_EQ(run_lockstep({"run", "-m", "--no-python", "platform"}).exit_code,
            2);
}

}  // namespace
}  // namespace lockstep
