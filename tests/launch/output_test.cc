// Workers' output arrives whole, for every writer and reader.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <array>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <future>
#include <iterator>

#include "launched_command.h"
#include "src/base/testing/file_size_limit.h"

namespace lockstep {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

TEST(Output, OfAFloodHasEveryLineWhole) {
  constexpr int kWorkers = 4;
  constexpr int kLines = 20'000;
  const CommandResult result = run_lockstep(shell_workers(
      kWorkers, "yes \"$RANK abcdefghijklmnopqrstuvwxyz\" | head -n 20000"));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  std::array<int, kWorkers> counts{};
  for (const std::string& line : sorted_lines(result.out))
    for (int rank = 0; rank < kWorkers; ++rank) {
      const std::string number = std::to_string(rank);
      counts[static_cast<std::size_t>(rank)] +=
          line ==
          "[rank " + number + "] " + number + " abcdefghijklmnopqrstuvwxyz";
    }
  EXPECT_THAT(counts, Each(kLines));
}

TEST(Output, KeepsTheOrderOfALonelyWorkersBytes) {
  const CommandResult result =
      run_lockstep(shell_workers(1, "printf 'no newline'; printf '\\r100 %%'"));
  EXPECT_EQ(result.out, "no newline\r100 %");
}

TEST(Output, TagsALastLineWithoutNewline) {
  const CommandResult result =
      run_lockstep(shell_workers(2, "[ $RANK = 0 ] || printf 'half a line'"));
  EXPECT_EQ(result.out, "[rank 1] half a line\n");
}

TEST(Output, OfGarbageIsTaggedLikeAnyOther) {
  const CommandResult result = run_lockstep(
      shell_workers(2, "head -c 300000 /dev/urandom | tr -d '\\r'; echo"));
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_GT(result.out.size(), 500'000u);
  EXPECT_THAT(sorted_lines(result.out), Each(StartsWith("[rank ")));
}

TEST(Output, OfOneEndlessLineIsCutAndComplete) {
  const CommandResult result =
      run_lockstep(shell_workers(2, "head -c 1000000 /dev/zero | tr '\\0' x"));
  std::size_t count = 0;
  for (const char c : result.out) count += c == 'x';
  EXPECT_EQ(count, 2'000'000u);
  EXPECT_THAT(sorted_lines(result.out), Each(StartsWith("[rank ")));
}

TEST(Output, IsAsOrderedAsWrittenWhereBothStreamsAreOne) {
  // The command's two streams are one here, as with 2>&1.
  const std::string inner = std::string(LOCKSTEP_COMMAND) +
                            " run -n 2 sh -c "
                            "'for i in 1 2 3; do echo $i; sleep 0; done' 2>&1";
  const CommandResult result = run_lockstep({"run", "sh", "-c", inner});
  EXPECT_THAT(result.out, HasSubstr("[rank 0] 1\n"));
  EXPECT_LT(result.out.find("[rank 0] 1"), result.out.find("[rank 0] 2"));
  EXPECT_LT(result.out.find("[rank 0] 2"), result.out.find("[rank 0] 3"));
}

TEST(Output, ThatNobodyReadsDoesNotKeepADeathFromBeingSeen) {
  // All pipes are full of rank 0's lines when rank 1 dies. Then the launcher
  // asks rank 0 to end, which rank 0 reports without the full pipes.
  const Gate die;
  const Gate ended;
  LaunchedCommand command(shell_workers(
      2, "if [ $RANK = 1 ]; then " + die.wait() + "exit 6; fi; trap '" +
             ended.pass() + "' TERM; yes"));
  ASSERT_TRUE(command.wait_until_output_is_full());
  die.open();
  EXPECT_TRUE(ended.opened());
  EXPECT_EQ(command.finish().exit_code, 6);
  EXPECT_FALSE(command.something_is_left());
}

TEST(Output, ThatNobodyReadsDoesNotKeepCtrlCFromWorking) {
  LaunchedCommand command(shell_workers(2, "yes"));
  ASSERT_TRUE(command.wait_until_output_is_full());
  EXPECT_TRUE(command.interrupt_until_nothing_is_left());
  EXPECT_EQ(command.finish().exit_code, 130);
}

TEST(Output, WithoutAReaderEndsTheJob) {
  LaunchedCommand command(shell_workers(2, "trap '' TERM; echo up; yes"));
  ASSERT_TRUE(command.wait_for("up\n", 2));
  command.hang_up();
  EXPECT_TRUE(command.wait_until_nothing_is_left());
  EXPECT_EQ(command.finish().exit_code, 128 + SIGPIPE);
}

TEST(Output, OfACppProgramComesAsItIsPrinted) {
  for (const Terminal terminal : {Terminal::kNone, Terminal::kPseudo}) {
    const Gate go_on;
    LaunchedCommand command({"run", "-n", "2", LOCKSTEP_PRINTER, go_on.path()},
                            {}, terminal);
    EXPECT_TRUE(command.wait_for("] printed\n", 2));
    EXPECT_TRUE(command.something_is_left());
  }
}

TEST(Output, OfACppProgramIsNotLostWhenItIsKilled) {
  const Gate never;
  LaunchedCommand command({"run", "-n", "2", LOCKSTEP_PRINTER, never.path()});
  ASSERT_TRUE(command.wait_for("printed\n", 2));
  command.signal(SIGINT);
  command.signal(SIGINT);
  EXPECT_EQ(command.finish().exit_code, 130);
}

TEST(Output, GoesToATerminalWhereTheCommandsDoes) {
  const auto words = [](Terminal terminal) {
    LaunchedCommand command(
        shell_workers(2, "[ -t 1 ] && [ -t 2 ] && stty size <&1 || echo no"),
        {}, terminal);
    return sorted_lines(command.finish().out);
  };
  // The tag takes 9 of the 90 columns.
  EXPECT_THAT(words(Terminal::kPseudo),
              ElementsAre("[rank 0] 24 81", "[rank 1] 24 81"));
  EXPECT_THAT(words(Terminal::kNone),
              ElementsAre("[rank 0] no", "[rank 1] no"));
}

TEST(Output, OnATerminalCannotBeReadForKeys) {
  LaunchedCommand command(
      shell_workers(2,
                    "for end in 1 2; do if read key <&$end; then "
                    "echo read $end; else echo refused $end; fi; done; "
                    "read key </dev/tty || echo refused tty"),
      {}, Terminal::kPseudo);
  EXPECT_TRUE(command.wait_for("refused 1", 2));
  EXPECT_TRUE(command.wait_for("refused 2", 2));
  EXPECT_TRUE(command.wait_for("refused tty", 2));
}

TEST(Output, OnATerminalShowsTheStatesOfABarBeforeItsEnd) {
  const Gate go_on;
  LaunchedCommand command(
      shell_workers(2, "printf 'at 1 %%\\rat 2 %%'; if [ $RANK = 0 ]; then " +
                           go_on.wait() + "fi; echo ' at the end'"),
      {}, Terminal::kPseudo);
  EXPECT_TRUE(command.wait_for("at 1 %\n"));
  go_on.open();
  EXPECT_THAT(command.finish().out, HasSubstr("at 2 % at the end\n"));
}

TEST(Output, OnATerminalHearsOfItsNewSize) {
  LaunchedCommand command(
      shell_workers(2,
                    "trap 'echo resized; exit 0' WINCH; sleep 1000 & "
                    "echo up; wait"),
      {}, Terminal::kPseudo);
  ASSERT_TRUE(command.wait_for("up\n", 2));
  command.signal(SIGWINCH);  // as the terminal's
  ASSERT_TRUE(command.wait_for("resized\n", 2));
  EXPECT_EQ(command.finish().exit_code, 0);
}

TEST(Output, HasNoPagerThatWaitsForKeys) {
  LaunchedCommand command(shell_workers(2, "echo $PAGER $GIT_PAGER"),
                          {"PAGER=less", "GIT_PAGER=less"}, Terminal::kPseudo);
  EXPECT_THAT(sorted_lines(command.finish().out),
              ElementsAre("[rank 0] cat cat", "[rank 1] cat cat"));
}

TEST(Output, GoesToAPipeWhereALogIsKept) {
  const TestDirectory logs;
  auto arguments = shell_workers(2, "[ -t 1 ] && echo yes || echo no");
  arguments.insert(arguments.begin() + 1, {"--log-dir", logs.path().string()});
  LaunchedCommand command(arguments, {}, Terminal::kPseudo);
  EXPECT_THAT(sorted_lines(command.finish().out),
              ElementsAre("[rank 0] no", "[rank 1] no"));
}

constexpr const char* kSteps =
    "for step in 1 2 3; do echo '{\"record\":\"step\",\"epoch\":1,\"epochs\":2,"
    "\"step\":'$step',\"steps\":3,\"loss\":0.5,\"images_per_second\":1000,"
    "\"seconds_left\":2}' >/proc/self/fd/$LOCKSTEP_PROGRESS_FD; done; ";

std::string from_rank_zero(const std::string& script) {
  return "if [ $RANK = 0 ]; then " + script + "fi; ";
}

TEST(Progress, IsAPlainLineNowAndThenWherePiped) {
  const CommandResult result =
      run_lockstep(shell_workers(2, from_rank_zero(kSteps) + "echo hello"));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, Not(HasSubstr("\033")));
  EXPECT_THAT(
      result.out,
      HasSubstr("epoch 1/2  1/3  loss 0.500  1,000 images/s  0:02 left\n"));
  EXPECT_THAT(result.out, Not(HasSubstr("2/3")));
  EXPECT_THAT(result.out, HasSubstr("[rank 1] hello\n"));
}

TEST(Progress, DoesNotRepeatALineThatHasBegun) {
  const Gate begun;
  const Gate reported;
  LaunchedCommand command(shell_workers(1, "printf 'preparing: '; " +
                                               begun.wait() + kSteps +
                                               reported.wait() + "echo done"));
  ASSERT_TRUE(command.wait_for("preparing: "));
  begun.open();
  ASSERT_TRUE(command.wait_for("images/s"));
  reported.open();
  const std::string out = command.finish().out;
  EXPECT_THAT(out, StartsWith("preparing: \nepoch"));
  EXPECT_THAT(out, EndsWith("left\ndone\n"));
}

TEST(Progress, ThatIsNoRecordIsShownAsOutput) {
  const CommandResult result = run_lockstep(shell_workers(
      2, from_rank_zero("echo nonsense >/proc/self/fd/$LOCKSTEP_PROGRESS_FD; "
                        "echo '{\"record\":\"unknown\"}' "
                        ">/proc/self/fd/$LOCKSTEP_PROGRESS_FD; ")));
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.err, "[rank 0] nonsense\n");
  EXPECT_EQ(result.out, "");
}

TEST(Progress, IsAskedOfRankZeroOnly) {
  const CommandResult result = run_lockstep(
      shell_workers(2, "[ $RANK = 0 ] || echo \"<$LOCKSTEP_PROGRESS_FD>\""));
  EXPECT_EQ(result.out, "[rank 1] <>\n");
}

TEST(ProgressOnATerminal, IsABarThatTearsNoLineAndGoesAtTheEnd) {
  const Gate go_on;
  LaunchedCommand command(
      shell_workers(2, from_rank_zero(kSteps + go_on.wait()) +
                           "for i in 1 2 3 4 5; do echo line; done"),
      {}, Terminal::kPseudo);
  ASSERT_TRUE(command.wait_for("3/3  loss 0.500"));
  go_on.open();
  const CommandResult result = command.finish();
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.out, HasSubstr("━"));
  EXPECT_THAT(result.out, HasSubstr("\r\033[K"));
  // The terminal keeps only the lines.
  std::string stays;
  std::size_t bar = 0;
  for (std::size_t place = 0; place < result.out.size(); ++place) {
    if (result.out.compare(place, 4, "\r\033[K") == 0) {
      stays.resize(bar);
      place += 3;
      continue;
    }
    stays += result.out[place];
    if (result.out[place] == '\n') bar = stays.size();
  }
  std::string expected;
  for (const char* rank : {"0", "1"})
    for (int i = 0; i < 5; ++i)
      expected += "[rank " + std::string(rank) + "] line\n";
  EXPECT_EQ(sorted_lines(stays), sorted_lines(expected));
}

TEST(ProgressOnATerminal, HonoursNoColorAndADumbTerminal) {
  const auto out_with = [](const std::vector<std::string>& environment) {
    const Gate go_on;
    LaunchedCommand command(
        shell_workers(2, from_rank_zero(kSteps + go_on.wait())), environment,
        Terminal::kPseudo);
    EXPECT_TRUE(command.wait_for("/3  loss"));
    go_on.open();
    return command.finish().out;
  };
  EXPECT_THAT(out_with({}), HasSubstr("\033[36m"));
  const std::string plain = out_with({"NO_COLOR=1"});
  EXPECT_THAT(plain, Not(HasSubstr("m━")));
  EXPECT_THAT(plain, HasSubstr("━"));
  EXPECT_THAT(out_with({"TERM=dumb"}), Not(HasSubstr("\033")));
  const std::string ascii = out_with({"LANG=C", "NO_COLOR=1"});
  EXPECT_THAT(ascii, HasSubstr("=="));
  EXPECT_THAT(ascii, Not(HasSubstr("━")));
}

TEST(OutputOnATerminal, CannotMoveTheCursor) {
  LaunchedCommand command(
      shell_workers(2, "printf '\\033[2J\\033[31mred\\007\\n'"), {},
      Terminal::kPseudo);
  EXPECT_THAT(sorted_lines(command.finish().out),
              testing::ElementsAre("[rank 0] \033[31mred?\033[0m",
                                   "[rank 1] \033[31mred?\033[0m"));
}

// Of rank 0 both streams go to its log alone, of rank 1 the errors.
TEST(Streams, GoWhereTheUserSendsThem) {
  const TestDirectory folder;
  const CommandResult result = run_lockstep(
      {"run", "-n", "2", "--log-dir", folder.path().string(), "-r", "0:3,1:2",
       "sh", "-c", "echo out $RANK; echo err $RANK >&2"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.out, "[rank 1] out 1\n");
  EXPECT_EQ(result.err, "");
  EXPECT_THAT(sorted_lines(contents(folder / "rank-0.log")),
              ElementsAre("err 0", "out 0"));
  EXPECT_EQ(contents(folder / "rank-1.log"), "err 1\n");
}

TEST(Streams, AreLoggedAndShownWithTee) {
  const TestDirectory folder;
  const CommandResult result =
      run_lockstep({"run", "-n", "2", "--log-dir", folder.path().string(),
                    "--tee", "1", "--local-ranks-filter", "1", "sh", "-c",
                    "echo out $RANK; echo err $RANK >&2"});
  EXPECT_EQ(result.out, "[rank 1] out 1\n");
  EXPECT_EQ(result.err, "[rank 1] err 1\n");
  EXPECT_EQ(contents(folder / "rank-0.log"), "out 0\n");
  EXPECT_EQ(contents(folder / "rank-1.log"), "out 1\n");
}

TEST(Streams, OfASingleRankAreHiddenToo) {
  const TestDirectory folder;
  const CommandResult result =
      run_lockstep({"run", "--log-dir", folder.path().string(), "-r", "1", "sh",
                    "-c", "echo out; echo err >&2"},
                   {"OMP_NUM_THREADS=1"});
  EXPECT_EQ(result.out, "");
  EXPECT_EQ(result.err, "err\n");
  EXPECT_EQ(contents(folder / "rank-0.log"), "out\n");
}

// What the screen did not show is in the report.
TEST(Streams, ThatAreHiddenAreInTheReportOfAFailure) {
  const TestDirectory folder;
  const Gate never;
  const CommandResult result = run_lockstep(
      {"run", "-n", "2", "--log-dir", folder.path().string(), "-r", "3", "sh",
       "-c",
       "[ $RANK = 0 ] || { echo the reason >&2; exit 3; }; " + never.wait()});
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(result.err, HasSubstr("output:  its last line\n    the reason"));
}

TEST(Streams, ThatAreClosedLoseNoOutputUnseen) {
  for (const std::string words : {"version", "status"}) {
    const CommandResult result = run_lockstep(
        {"run", "sh", "-c", LOCKSTEP_COMMAND " " + words + " >&-"});
    EXPECT_EQ(result.exit_code, 1) << words;
    EXPECT_THAT(result.err, HasSubstr("Bad file descriptor")) << words;
  }
}

TEST(Streams, ThatAreClosedLeaveAJobAlone) {
  const CommandResult result = run_lockstep(
      {"run", "sh", "-c",
       LOCKSTEP_COMMAND " run sh -c 'echo line; echo other >&2' >&-"},
      {"OMP_NUM_THREADS=1"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.out, "");
  EXPECT_EQ(result.err, "other\n");
}

// /dev/full refuses every byte, as a full disk does.
TEST(Streams, GoOnWithoutALogThatCannotBeWritten) {
  const TestDirectory folder;
  std::filesystem::create_symlink("/dev/full", folder / "rank-0.log");
  const CommandResult result =
      run_lockstep({"run", "--log-dir", folder.path().string(), "sh", "-c",
                    "echo out; echo more; exit 3"});
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_EQ(result.out, "out\nmore\n");
  EXPECT_THAT(result.err, HasSubstr("rank-0.log is no longer written: No space "
                                    "left on device\n"));
  EXPECT_THAT(result.err, Not(HasSubstr("its whole output is in")));
}

// The kernel's signal for such a write would end the launcher.
TEST(Streams, GoOnWithoutALogThatGrowsBeyondTheLimitOnFiles) {
  const TestDirectory folder;
  const FileSizeLimit limit(1 << 16);
  const CommandResult result =
      run_lockstep({"run", "--log-dir", folder.path().string(), "sh", "-c",
                    "yes | head -c 100000; exit 3"});
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_EQ(result.out.size(), 100000);
  EXPECT_THAT(result.err,
              HasSubstr("rank-0.log is no longer written: File too large\n"));
}

// A file where the log's folder must be fails as a full disk does. At the first
// start that is an error.
TEST(Streams, GoOnWithoutALogWhereARestartCannotMakeOne) {
  const TestDirectory folder;
  const CommandResult result = run_lockstep(
      {"run", "--max-restarts", "1", "--log-dir", folder.path().string(), "sh",
       "-c",
       "[ $TORCHELASTIC_RESTART_COUNT = 0 ] || { echo again; exit 0; }; "
       ": >" +
           (folder / "restart-1").string() + "; exit 3"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, "again\n");
  EXPECT_THAT(result.err, HasSubstr("rank 0 goes on without a log: cannot "
                                    "create the folder"));
  EXPECT_EQ(run_lockstep(
                {"run", "--log-dir", (folder / "restart-1").string(), "true"})
                .exit_code,
            1);
}

// To open such a pipe would wait for a reader.
TEST(Streams, AreNotLoggedToAPipeThatNoProcessReads) {
  const TestDirectory folder;
  const std::string pipe = (folder / "rank-0.log").string();
  ASSERT_EQ(::mkfifo(pipe.c_str(), S_IRUSR | S_IWUSR), 0);
  const CommandResult result =
      run_lockstep({"run", "--log-dir", folder.path().string(), "true"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err,
              HasSubstr("rank-0.log, a pipe that no process reads, or "
                        "a socket; name "
                        "another folder with --log-dir"));
}

// The launcher waits where the reader is slow: a log has every byte.
TEST(Streams, AreLoggedWholeToAPipeThatAProcessReads) {
  const TestDirectory folder;
  const std::string pipe = (folder / "rank-0.log").string();
  ASSERT_EQ(::mkfifo(pipe.c_str(), S_IRUSR | S_IWUSR), 0);
  FileDescriptor writer(::open(pipe.c_str(), O_RDWR));
  constexpr int kSmall = 4096;
  ASSERT_EQ(::fcntl(writer.get(), F_SETPIPE_SZ, kSmall), kSmall);
  std::ifstream log(pipe);
  auto read = std::async(std::launch::async, [&] {
    return std::string(std::istreambuf_iterator<char>(log), {});
  });
  const CommandResult result =
      run_lockstep({"run", "--log-dir", folder.path().string(), "-r", "3", "sh",
                    "-c", "head -c 300000 /dev/zero"});
  writer.reset();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(read.get().size(), 300'000u);
}

TEST(Streams, GoToANewFolderWhereNoneIsNamed) {
  const TestDirectory temporary;
  const std::string where = "TMPDIR=" + temporary.path().string();
  const CommandResult result = run_lockstep(
      {"run", "-n", "2", "-r", "1", "sh", "-c", "echo $RANK"}, {where});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.out, "");
  const std::string stem = "lockstep: the logs are in ";
  ASSERT_THAT(result.err, StartsWith(stem));
  const std::filesystem::path folder =
      result.err.substr(stem.size(), result.err.find('\n') - stem.size());
  EXPECT_EQ(folder.parent_path(), temporary.path());
  EXPECT_EQ(contents(folder / "rank-1.log"), "1\n");
  EXPECT_EQ(
      run_lockstep({"run", "-t", "0", "true"}, {where, "OMP_NUM_THREADS=1"})
          .err,
      "");
  EXPECT_EQ(run_lockstep({"run", "-t", "4", "true"}, {where}).exit_code, 2);
}

TEST(ErrorFile, IsThereOnlyWhereTheJobFailed) {
  const TestDirectory folder;
  const std::string file = folder / "error.json";
  const auto run = [&](const std::string& script) {
    return run_lockstep({"run", "-n", "2", "--max-restarts", "1",
                         "--error-file", file, "sh", "-c", script});
  };
  EXPECT_EQ(run("echo reason; [ $RANK = 0 ] || exit 5").exit_code, 5);
  EXPECT_THAT(contents(file),
              AllOf(HasSubstr("\"rank\": 1,"), HasSubstr("\"exit_code\": 5,"),
                    HasSubstr("\"restarts\": 1,"), HasSubstr("\"reason\"")));
  EXPECT_EQ(run("exit $((1 - TORCHELASTIC_RESTART_COUNT))").exit_code, 0);
  EXPECT_TRUE(folder.entries().empty());
}

}  // namespace
}  // namespace lockstep
