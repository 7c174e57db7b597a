// The records of a job that fails or hangs, and the verdict of `lockstep
// blame`.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <filesystem>

#include "launched_command.h"
#include "src/base/testing/test_directory.h"
#include "src/base/text_file.h"
#include "src/faults/testing/note_in_shell.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

// A job whose records go to the test's folder.
class Records : public testing::Test {
 protected:
  // Rank 1 of three never joins the others' all_reduce.
  std::vector<std::string> job() const {
    return {"run", "-n", "3", LOCKSTEP_COMM_RANKS, "held_before_all_reduce"};
  }
  std::vector<std::string> environment(const std::string& more) const {
    return {"LOCKSTEP_DUMP_DIR=" + folder_, more};
  }
  std::string record_of(int rank) const {
    return folder_ + "/rank-" + std::to_string(rank) + ".json";
  }
  CommandResult blame() const { return run_lockstep({"blame", folder_}); }

  // Returns when all ranks have written their records on request. A rank
  // listens shortly after its first operation, and a rank may answer too late
  // to be named, so the test may ask again.
  void ask_until_all_have_written(LaunchedCommand& command) const {
    const std::string all_wrote =
        "lockstep: records of ranks 0, 1, 2; next: lockstep blame " + folder_;
    for (int replies = 1;
         command.errors_so_far().find(all_wrote) == std::string::npos;
         ++replies) {
      command.signal(SIGUSR1);
      ASSERT_TRUE(command.wait_for("lockstep: ", replies));
    }
  }

  const TestDirectory made_;
  const std::string folder_ = made_.path();
};

TEST_F(Records, OfAJobThatTimedOutNameTheRankThatDidNotCome) {
  LaunchedCommand command(job(), environment("LOCKSTEP_TIMEOUT=0.5"));
  const CommandResult result = command.finish();
  EXPECT_EQ(result.exit_code, 10);
  EXPECT_THAT(result.err, HasSubstr("next:    lockstep blame " + folder_));
  const CommandResult blamed = blame();
  EXPECT_EQ(blamed.exit_code, 0) << blamed.err;
  EXPECT_THAT(blamed.out, AllOf(HasSubstr("Rank 1 of 3 did not come to "
                                          "all_reduce #2"),
                                HasSubstr("of ranks 0, 1, 2\n")));
}

TEST_F(Records, TellHowARankDied) {
  LaunchedCommand command(
      {"run", "-n", "3", "sh", "-c",
       "[ $RANK = 1 ] && echo pid $$ that; exec " LOCKSTEP_COMM_RANKS
       " held_before_all_reduce"},
      environment("VICTIM=1"));
  ASSERT_TRUE(command.wait_for("published", 2));
  ASSERT_TRUE(command.wait_for("holding"));
  // So that the launcher also waits for the survivors' records.
  ASSERT_NO_FATAL_FAILURE(ask_until_all_have_written(command));
  for (const int rank : {0, 1, 2}) std::filesystem::remove(record_of(rank));
  const std::string& output = command.output_so_far();
  const auto pid = std::stoi(output.substr(output.find("pid ") + 4));
  ASSERT_GT(pid, 1);
  ::kill(pid, SIGKILL);
  EXPECT_EQ(command.finish().exit_code, 128 + SIGKILL);
  const CommandResult blamed = blame();
  EXPECT_EQ(blamed.exit_code, 0) << blamed.err;
  EXPECT_THAT(blamed.out,
              AllOf(HasSubstr("Rank 1 of 3 was killed by signal 9 (SIGKILL)"),
                    // A slow rank learns of the death before it waits.
                    ContainsRegex("missed by rank(s 0, 2| 0| 2), in "
                                  "all_reduce #2"),
                    HasSubstr("memory ran out")));
}

// In a folder that a failed job used.
TEST_F(Records, OfAJobWithoutAFaultShowNone) {
  run_lockstep(job(), environment("LOCKSTEP_TIMEOUT=0.2"));
  for (const int rank : {0, 1, 2}) std::filesystem::remove(record_of(rank));
  LaunchedCommand command(job(), environment("VICTIM=1"));
  ASSERT_TRUE(command.wait_for("published", 2));
  ASSERT_TRUE(command.wait_for("holding"));
  ASSERT_NO_FATAL_FAILURE(ask_until_all_have_written(command));
  // Before the job ends, because a rank that sees another leave first gets an
  // error.
  const CommandResult blamed = blame();
  EXPECT_EQ(blamed.exit_code, 3) << blamed.out;
  EXPECT_THAT(blamed.out, HasSubstr("No rank that left a record has an error"));
}

TEST_F(Records, OfAnEarlierJobAreNoEvidenceOfALaterOne) {
  run_lockstep(job(), environment("LOCKSTEP_TIMEOUT=0.2"));
  const CommandResult later =
      run_lockstep(shell_workers(2, "exit 4"), environment("VICTIM=1"));
  EXPECT_EQ(later.exit_code, 4);
  const std::string earlier = folder_ + "/earlier-1";
  EXPECT_THAT(
      later.err,
      AllOf(HasSubstr("records of an earlier job are now in " + earlier),
            Not(HasSubstr("lockstep blame"))));
  EXPECT_EQ(blame().exit_code, 2);
  const CommandResult blamed = run_lockstep({"blame", earlier});
  EXPECT_EQ(blamed.exit_code, 0);
  EXPECT_THAT(blamed.out, HasSubstr("Rank 1 of 3 did not come"));
}

// The names of what is in the test's folder.
std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    names.push_back(entry.path().filename().string());
  return names;
}

// Issue 43, point 15: the records of the others say only that they miss it.
TEST_F(Records, OfARankThatHasSaidWhyItEndsAreNotKept) {
  const std::vector<std::string> ranks{
      "run",
      "-n",
      "3",
      "sh",
      "-c",
      "[ $RANK != 1 ] || echo the file is wrong >&2; exec " LOCKSTEP_COMM_RANKS
      " die"};
  const std::string in_folder = "TMPDIR=" + folder_;
  const CommandResult said = run_lockstep(ranks, {in_folder, "EXIT_CODE=3"});
  EXPECT_EQ(said.exit_code, 3);
  EXPECT_THAT(said.err, AllOf(HasSubstr("the file is wrong"),
                              Not(HasSubstr("lockstep blame"))));
  EXPECT_THAT(names_in(folder_), IsEmpty());
  // In the user's own folder they stay, with the launcher's.
  const CommandResult chosen = run_lockstep(ranks, environment("EXIT_CODE=3"));
  EXPECT_THAT(chosen.err, Not(HasSubstr("lockstep blame")));
  EXPECT_THAT(names_in(folder_), Contains("job.json"));
  EXPECT_THAT(blame().out, HasSubstr("Rank 1 of 3"));
}

TEST_F(Records, SayWhetherTheRankThatTheLauncherBlamesOnlyLostAPeer) {
  for (const bool lost_a_peer : {true, false}) {
    const std::string leaves_note =
        lost_a_peer ? note_in_shell("peer_gone", 1) + "; " : "";
    run_lockstep(shell_workers(1, "echo {} >$LOCKSTEP_DUMP_DIR/rank-0.json; " +
                                      leaves_note + "exit 1"),
                 environment(""));
    EXPECT_THAT(read_text_file(folder_ + "/job.json", 1000),
                HasSubstr(lost_a_peer ? "\"lost_a_peer\": true"
                                      : "\"lost_a_peer\": false"));
  }
}

// Though rank 1 has said why it ends.
TEST_F(Records, ThatTheUserWasToldToReadAreKept) {
  const Gate gate;
  LaunchedCommand command(
      {"run", "-n", "3", "sh", "-c",
       "[ $RANK = 1 ] || exec " LOCKSTEP_COMM_RANKS
       " held_before_all_reduce; " LOCKSTEP_COMM_RANKS
       " held_before_all_reduce & " +
           gate.wait() + "echo the file is wrong >&2; kill $!; exit 3"},
      {"TMPDIR=" + folder_});
  ASSERT_TRUE(command.wait_for("published", 2));
  const std::string told = "next: lockstep blame ";
  for (int replies = 1; command.errors_so_far().find(told) == std::string::npos;
       ++replies) {
    command.signal(SIGUSR1);
    ASSERT_TRUE(command.wait_for("lockstep: ", replies));
  }
  gate.open();
  EXPECT_EQ(command.finish().exit_code, 3);
  EXPECT_EQ(names_in(folder_).size(), 1u);
}

// Its losses, for example, do not say why.
TEST_F(Records, OfARankThatEndsWithoutAWordOnItsErrorAreKept) {
  const CommandResult result =
      run_lockstep({"run", "-n", "3", "sh", "-c",
                    "echo step 1: loss 0.5; exec " LOCKSTEP_COMM_RANKS " die"},
                   {"TMPDIR=" + folder_, "EXIT_CODE=3"});
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(result.err, HasSubstr("next:    lockstep blame " + folder_));
  EXPECT_EQ(names_in(folder_).size(), 1u);
}

TEST_F(Records, OfAKilledLauncherLeaveNoFolderToTheNextJob) {
  const std::string in_folder = "TMPDIR=" + folder_;
  LaunchedCommand killed(shell_workers(1, "echo up; exec sleep 1000"),
                         {in_folder});
  ASSERT_TRUE(killed.wait_for("up\n"));
  // Beside another job, whose folders stay.
  const Gate gate;
  LaunchedCommand living(shell_workers(1, "echo up; " + gate.wait() + "exit 0"),
                         {in_folder});
  ASSERT_TRUE(living.wait_for("up\n"));
  EXPECT_EQ(names_in(folder_).size(), 4u);
  killed.signal(SIGKILL);
  ASSERT_TRUE(killed.wait_until_nothing_is_left());
  run_lockstep(shell_workers(1, "true"), {in_folder});
  EXPECT_EQ(names_in(folder_).size(), 2u);
  gate.open();
  EXPECT_EQ(living.finish().exit_code, 0);
  EXPECT_THAT(names_in(folder_), IsEmpty());
}

TEST_F(Records, OfLastMonthAreRemovedByTheNextJob) {
  const std::filesystem::path old = made_ / "lockstep-records-aaaaaa";
  std::filesystem::create_directory(old);
  std::filesystem::last_write_time(
      old, std::filesystem::file_time_type::clock::now() -
               std::chrono::hours(24 * 30));
  run_lockstep(shell_workers(1, "true"), {"TMPDIR=" + folder_});
  EXPECT_FALSE(std::filesystem::exists(old));
}

TEST_F(Records, ThatAreNotThereAreAUsageError) {
  const CommandResult none = blame();
  EXPECT_EQ(none.exit_code, 2);
  EXPECT_THAT(none.err, HasSubstr("holds no usable record of a rank"));
  const CommandResult result = run_lockstep({"blame", folder_ + "/missing"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("there is no folder"));
}

}  // namespace
}  // namespace lockstep
