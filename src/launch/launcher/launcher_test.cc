// The parts of the launcher that tests of the whole program do not cover.
#include "src/launch/launcher/launcher.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <random>
#include <utility>

#include "lockstep/base/error.h"
#include "src/base/testing/test_directory.h"
#include "src/faults/testing/note_in_shell.h"
#include "src/launch/output/terminal_text.h"
#include "src/net/pipe.h"
#include "src/store/tcp_store_server.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

std::optional<std::string> nothing_set(const std::string&) {
  return std::nullopt;
}

LaunchOptions shells(int workers, const std::string& script,
                     std::chrono::milliseconds grace = 24h) {
  LaunchOptions options;
  options.command = {"sh", "-c", script};
  options.job.workers = workers;
  options.grace = grace;
  return options;
}

JobResult run_job(LaunchOptions options, int out, int err) {
  SignalWatch signals;
  Screen screen(out, err, nothing_set);
  return Launcher(std::move(options), signals, screen).run();
}

std::string text_in(const std::filesystem::path& file) {
  std::ifstream stream(file);
  return {std::istreambuf_iterator<char>(stream), {}};
}

// Runs `script` in `workers` shells and discards their output.
JobResult run_job(int workers, const std::string& script,
                  std::chrono::milliseconds grace) {
  const FileDescriptor nowhere(::open("/dev/null", O_WRONLY | O_CLOEXEC));
  const TestDirectory notes;
  LaunchOptions options = shells(workers, script, grace);
  options.job.notes_directory = notes.path();
  return run_job(std::move(options), nowhere.get(), nowhere.get());
}

// What was written to a pipe.
std::string text_of(Pipe pipe) {
  pipe.write.reset();
  std::array<char, 5000> buffer{};
  const ssize_t count = ::read(pipe.read.get(), buffer.data(), buffer.size());
  return {buffer.data(), static_cast<std::size_t>(std::max<ssize_t>(count, 0))};
}

// The exit code and the error output of a job whose output goes to `out`.
std::pair<int, std::string> run_with_output(const std::string& script,
                                            int out) {
  Pipe errors = make_pipe();
  const int exit_code =
      run_job(shells(2, script), out, errors.write.get()).exit_code;
  return {exit_code, text_of(std::move(errors))};
}

TEST(Launcher, KillsAtOnceWhenAskedASecondTime) {
  // Rank 0 sends the signals of a user: Ctrl-C, and again when it is asked to
  // end. Rank 1 ignores signals; with this grace it would stay.
  const JobResult result = run_job(
      2,
      "if [ $RANK = 1 ]; then trap '' TERM; while :; do sleep 1000; done; fi; "
      "trap 'kill -INT $PPID' TERM; sleep 1000 & kill -INT $PPID; wait",
      24h);
  EXPECT_EQ(result.exit_code, 130);
  EXPECT_FALSE(result.failure.has_value());
}

// As a scheduler and a wrapper around the launcher do. Rank 0 goes on when the
// launcher has taken the signals.
TEST(Launcher, LeavesWorkersTheirGraceWhenSigtermIsRepeated) {
  const TestDirectory folder;
  const JobResult result = run_job(2, "cd " + folder.path().string() + R"(
      repeat() {
        kill -TERM $PPID; kill -HUP $PPID
        until grep -q "ShdPnd:.*0000000000000000" /proc/$PPID/status; do :; done
      }
      trap 'if [ $RANK = 0 ]; then repeat; repeat; repeat; fi; exit 75' TERM
      touch ready$RANK
      until [ -e ready0 -a -e ready1 ]; do :; done
      if [ $RANK = 0 ]; then kill -TERM $PPID; fi
      while :; do :; done)",
                                   24h);
  EXPECT_EQ(result.signal, SIGTERM);
  EXPECT_EQ(result.exit_code, 75);  // as where every rank has saved its state
}

TEST(Launcher, GivesWorkersTheirGraceWhenAskedWhileItLooksForACause) {
  const TestDirectory folder;
  // Rank 1 sends the signal as soon as rank 0 has ended.
  // Rank 0's note names rank 1, whose end the launcher then awaits.
  const JobResult result = run_job(
      2,
      "cd " + folder.path().string() +
          "; if [ $RANK = 0 ]; then echo $$ >new; mv new pid; " +
          note_in_shell("peer_error", 1) +
          "; exit 3; fi; "
          "trap 'echo all >saved; exit 0' TERM; until [ -e pid ]; do :; done; "
          "until grep -q ') Z' /proc/$(cat pid)/stat; do :; done; "
          "kill -INT $PPID; while :; do :; done",
      24h);
  EXPECT_TRUE(std::filesystem::exists(folder.path() / "saved"));
  EXPECT_EQ(result.signal, SIGINT);
}

TEST(Launcher, GivesWorkersTheirGraceWhereTheStoreOfAJobInPlaceIsGone) {
  const TestDirectory directory;
  auto store = std::make_optional<TcpStoreServer>("127.0.0.1", 0, "token");
  LaunchOptions options = shells(2, R"(
      if [ $RANK = 0 ]; then
        trap 'echo saved; exit 0' TERM
        touch "$READY"
        while :; do sleep 0.01; done
      fi
      while [ ! -e "$READY" ]; do sleep 0.01; done
      exit 3)");
  options.environment.push_back("READY=" + (directory / "ready").string());
  options.after_death = AfterDeath::kReformInPlace;
  options.job.store_url = store->url();
  options.job.token = "token";
  options.on_start = [&](const RunningWorkers&) { store.reset(); };
  Pipe output = make_pipe();
  const JobResult result =
      run_job(std::move(options), output.write.get(), output.write.get());
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(text_of(std::move(output)),
              AllOf(HasSubstr("the job's store is gone"), HasSubstr("saved"),
                    HasSubstr("rank 1 of 2 exited with code 3")));
}

TEST(Launcher, GivesNoReplacementTheNoteOfTheDead) {
  const TestDirectory notes;
  const TcpStoreServer store("127.0.0.1", 0, "token");
  LaunchOptions options =
      shells(2,
             "if [ $RANK = 0 ]; then until [ -e $ENDED ]; do :; done; "
             "exit 0; fi; "
             "if [ $TORCHELASTIC_RESTART_COUNT = 0 ]; then " +
                 note_in_shell("peer_gone", 0) +
                 "; exit 3; fi; touch $ENDED; "
                 "if [ -e $LOCKSTEP_FAULT_FILE ]; then exit 4; fi");
  options.environment.push_back("ENDED=" + (notes / "ended").string());
  options.after_death = AfterDeath::kReformInPlace;
  options.min_ranks = 2;
  options.job.max_restarts = 1;
  options.job.notes_directory = notes.path();
  options.job.store_url = store.url();
  options.job.token = "token";
  const FileDescriptor nowhere(::open("/dev/null", O_WRONLY | O_CLOEXEC));
  const JobResult result =
      run_job(std::move(options), nowhere.get(), nowhere.get());
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_TRUE(std::filesystem::exists(notes / "ended"));
}

TEST(Launcher, DoesNotUseUpItsGraceWhereAllEndThemselves) {
  EXPECT_EQ(run_job(3, "exit $RANK", 24h).failure->workers, 3);
}

// A second SIGTERM would cut the saving of its state short. Rank 0's child
// becomes an orphan when rank 0 has ended; it knows that the launcher has
// looked for orphans since, when another one has ended.
TEST(Launcher, AsksEachProcessToEndOnce) {
  const TestDirectory folder;
  run_job(1, "cd " + folder.path().string() + R"sh(
      cat >child <<'END'
        trap 'echo asked >>child-asked' TERM
        echo >up
        until [ -e child-asked ]; do :; done
        until [ "$(cut -d ' ' -f 4 /proc/$$/stat)" != $PPID ]; do :; done
        (setsid sleep 1000 & echo $! >other)
        until [ ! -e "/proc/$(cat other)" ]; do :; done
END
      sh child &
      until [ -e up ]; do :; done
      kill -TERM $PPID
      wait)sh",
          24h);
  EXPECT_EQ(text_in(folder / "child-asked"), "asked\n");
}

TEST(Launcher, LeavesOtherChildrenAlone) {
  const Pipe gate = make_pipe();
  const pid_t child = ::fork();
  if (child == 0) {
    char byte = 0;
    ::close(gate.write.get());
    ::_exit(::read(gate.read.get(), &byte, 1) == 1 ? 42 : 1);
  }
  EXPECT_EQ(run_job(1, "(setsid sleep 1000 &) ; exit 3", 24h).exit_code, 3);
  ASSERT_EQ(::write(gate.write.get(), "x", 1), 1);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 42);
}

TEST(Launcher, LeavesNoDescriptorAndNoSignalBlocked) {
  sigset_t before;
  sigset_t after;
  ::pthread_sigmask(SIG_SETMASK, nullptr, &before);
  const int next_before = ::dup(0);
  ::close(next_before);
  run_job(4, "exit 0", 24h);
  const int next_after = ::dup(0);
  ::close(next_after);
  ::pthread_sigmask(SIG_SETMASK, nullptr, &after);
  EXPECT_EQ(next_before, next_after);
  for (const int signal : {SIGINT, SIGTERM, SIGCHLD, SIGPIPE, SIGXFSZ, SIGTSTP})
    EXPECT_EQ(sigismember(&before, signal), sigismember(&after, signal));
}

// The worker's end may come before or after the launcher reads its output.
TEST(Launcher, FailsWhereItsOutputCannotBeWritten) {
  const FileDescriptor full(::open("/dev/full", O_WRONLY | O_CLOEXEC));
  for (const char* script : {"echo important", "echo important; sleep 1000"}) {
    const auto [exit_code, errors] = run_with_output(script, full.get());
    EXPECT_EQ(exit_code, 1) << script;
    EXPECT_THAT(errors, HasSubstr("lockstep: output cannot be written (No "
                                  "space left on device)"));
  }
}

// A line without its end is written once the worker is gone: before that, the
// launcher would end the worker.
TEST(Launcher, KeepsTheCodeOfAJobThatFailedBeforeItsOutputDid) {
  const FileDescriptor full(::open("/dev/full", O_WRONLY | O_CLOEXEC));
  const auto [exit_code, errors] =
      run_with_output("printf 'no newline'; exit 7", full.get());
  EXPECT_EQ(exit_code, 7);
  EXPECT_THAT(errors, HasSubstr("output cannot be written"));
}

TEST(Launcher, FailsWhereItsLastOutputCannotBeWritten) {
  // The rank's bytes wait in its pipe until the launcher drains it.
  const FileDescriptor full(::open("/dev/full", O_WRONLY | O_CLOEXEC));
  const auto [exit_code, errors] =
      run_with_output("printf 'no newline'", full.get());
  EXPECT_EQ(exit_code, 1);
  EXPECT_THAT(errors, AllOf(HasSubstr("output cannot be written"),
                            Not(HasSubstr("ending the workers"))));
}

TEST(Launcher, EndsLikeAProgramInAPipeWhereTheReaderHasGone) {
  Pipe pipe = make_pipe();
  pipe.read.reset();
  const auto [exit_code, errors] =
      run_with_output("printf 'no newline'", pipe.write.get());
  EXPECT_EQ(exit_code, 128 + SIGPIPE);
  EXPECT_EQ(errors, "");
}

TEST(Launcher, RefusesAJobOfNobody) {
  EXPECT_THROW(run_job(0, "true", 1s), InvalidArgument);
}

TEST(FailureReport, SaysWhoHowAndWhatNext) {
  WorkerFailure failure{.rank = 3,
                        .workers = 8,
                        .pid = 123,
                        .status = {.code = 0, .signal = SIGSEGV},
                        .seconds = 1.25,
                        .program = "./train",
                        .last_lines = {"one", "two"},
                        .log_path = "logs/rank-3.log"};
  EXPECT_EQ(describe(failure),
            "lockstep: rank 3 of 8 was killed by signal 11 (SIGSEGV) after 1.2 "
            "s; the other ranks were ended\n"
            "  program: ./train (process 123)\n"
            "  output:  its last 2 lines\n"
            "    one\n"
            "    two\n"
            "  likely:  a bug in the program: it accessed invalid memory\n"
            "  next:    its whole output is in logs/rank-3.log");
  failure.status = {.code = 2, .signal = 0};
  failure.last_lines.clear();
  EXPECT_THAT(describe(failure), AllOf(HasSubstr("exited with code 2"),
                                       HasSubstr("output:  it wrote nothing"),
                                       Not(HasSubstr("likely"))));
}

TEST(Launcher, WaitsForTheRankThatToldTheOthersOfItsError) {
  const TestDirectory folder;
  // Rank 0 fails half a second after rank 1 has ended.
  const JobResult result = run_job(
      2,
      "cd " + folder.path().string() +
          "; if [ $RANK = 1 ]; then echo $$ >new; mv new pid; " +
          note_in_shell("peer_error", 0) +
          "; exit 1; fi; "
          "trap '' TERM; until [ -e pid ]; do :; done; "
          "end=/proc/$(cat pid)/stat; "
          "while [ -e $end ] && ! grep -q ') Z' $end; do :; done; "
          "now() { echo $(($(date +%s%N) / 1000000)); }; end=$(($(now) + 500));"
          "while [ $(now) -lt $end ]; do :; done; "
          "echo no room >&2; exit 3",
      24h);
  ASSERT_TRUE(result.failure.has_value());
  EXPECT_EQ(result.failure->rank, 0);
  EXPECT_EQ(result.exit_code, 3);
}

TEST(TerminalText, KeepsColoursAndNothingElse) {
  EXPECT_EQ(safe_for_terminal("plain\ttext ü"), "plain\ttext ü");
  EXPECT_EQ(safe_for_terminal("\033[1;31mred"), "\033[1;31mred\033[0m");
  EXPECT_EQ(safe_for_terminal("a\033[2Jb\033[10;20Hc\033]0;title\ad\033Me"),
            "abcde");
  EXPECT_EQ(safe_for_terminal(std::string("a\0b\x07\x7f", 5)), "a?b??");
}

TEST(TerminalText, ShowsWhatFollowsASequence) {
  const std::string_view link =
      "\033]8;;http://a.b\033\\link\033]8;;\033\\ error: text";
  EXPECT_EQ(safe_for_terminal(link), "link error: text");
  for (const std::string start : {"\033]0;", "\033P", "\033_", "\033^", "\033X",
                                  "\u009d", "\u0090", "\u009f"})
    for (const std::string end : {"\a", "\033\\", "\u009c"})
      EXPECT_EQ(safe_for_terminal("a" + start + "body ü" + end + "b"), "ab")
          << start.substr(1) << " " << end;
  EXPECT_EQ(safe_for_terminal("\033(B\033)0\033#8\033 F\033%Gbold"), "bold");
  EXPECT_EQ(safe_for_terminal("\033]0;cut\033[31mred"), "\033[31mred\033[0m");
  EXPECT_EQ(safe_for_terminal("\033[31\001red"), "?red");
  EXPECT_EQ(safe_for_terminal("\033ü"), "ü");
  EXPECT_EQ(safe_for_terminal("\033\033[2Ja"), "a");
}

TEST(TerminalText, TakesOnlyPlainParametersForColours) {
  EXPECT_EQ(safe_for_terminal("a\033[>4;2mb\033[?4mc\033[1 md"), "abcd");
  EXPECT_EQ(safe_for_terminal("\033[38:2::1:2:3mx"),
            "\033[38:2::1:2:3mx\033[0m");
  EXPECT_EQ(safe_for_terminal("\033[mx"), "\033[mx\033[0m");
}

TEST(TerminalText, KnowsTheControlsAboveAscii) {
  EXPECT_EQ(safe_for_terminal("\u009b31mred"), "\033[31mred\033[0m");
  EXPECT_EQ(safe_for_terminal("a\u009b2Jb\u0085c"), "ab?c");
}

TEST(TerminalText, SurvivesSequencesThatAreCutShort) {
  for (const char* text : {"\033", "\033[", "\033[31", "\033]0;x"})
    EXPECT_EQ(safe_for_terminal(text), "") << text + 1;
}

TEST(OutputQueue, WritesWhatThePipeTakesAndKeepsTheRest) {
  const Pipe pipe = make_pipe();
  OutputQueue queue(pipe.write.get());
  std::string sent;
  while (!queue.full()) {
    const std::string line = "line " + std::to_string(sent.size()) + "\n";
    sent += line;
    queue.add(line);
    queue.flush();
  }
  EXPECT_FALSE(queue.empty());
  std::string received;
  std::array<char, 5000> buffer{};
  while (received.size() < sent.size()) {
    const ssize_t count = ::read(pipe.read.get(), buffer.data(), buffer.size());
    ASSERT_GT(count, 0);
    received.append(buffer.data(), static_cast<std::size_t>(count));
    queue.flush();
  }
  EXPECT_EQ(received, sent);
  EXPECT_TRUE(queue.empty());
  EXPECT_EQ(::fcntl(pipe.write.get(), F_GETFL) & O_NONBLOCK, 0);
}

TEST(OutputQueue, DropsEverythingOnceTheReaderHasGone) {
  SignalWatch signals;  // blocks SIGPIPE
  Pipe pipe = make_pipe();
  OutputQueue queue(pipe.write.get());
  pipe.read.reset();
  queue.add("hello");
  queue.flush();
  EXPECT_EQ(queue.error(), EPIPE);
  queue.add("more");
  EXPECT_TRUE(queue.empty());
}

}  // namespace
}  // namespace lockstep
