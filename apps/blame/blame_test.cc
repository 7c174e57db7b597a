#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "apps/blame/blame_command.h"
#include "apps/testing/hand_made_records.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

BlameVerdict judge_records(std::vector<RankRecord> records) {
  return judge({.records = std::move(records)});
}

TEST(Blame, NamesARankThatDiedAndItsSignal) {
  Evidence evidence;
  for (const int rank : {0, 1, 3}) {
    RankRecord record = rank_record(rank);
    add(record, 7, 0.1);
    fail(record, "PeerFailure", 2);
    evidence.records.push_back(record);
  }
  evidence.job = {.workers = 4, .rank = 2, .signal = 9, .seconds = 12.5};
  const BlameVerdict verdict = judge(evidence);
  EXPECT_EQ(verdict.fault, RootFault::kDeath);
  EXPECT_THAT(verdict.ranks, ElementsAre(2));
  EXPECT_EQ(verdict.operation, "all_reduce #7 (sum, 16 x float32)");
  EXPECT_EQ(
      verdict.paragraph,
      "Rank 2 of 4 was killed by signal 9 (SIGKILL) 12.5 s after the job "
      "began. It was missed by ranks 0, 1, 3, in all_reduce #7 (sum, 16 x "
      "float32) of group \"default\".");
  EXPECT_THAT(verdict.likely, HasSubstr("memory ran out"));
}

TEST(Blame, NamesARankThatDiedWithoutALauncherToTell) {
  RankRecord survivor = rank_record(0);
  add(survivor, 7, 0.1);
  fail(survivor, "PeerFailure", 2, "rank 2 is gone: its process ended");
  const BlameVerdict verdict = judge_records({survivor});
  EXPECT_EQ(verdict.fault, RootFault::kDeath);
  EXPECT_THAT(verdict.ranks, ElementsAre(2));
  EXPECT_THAT(
      verdict.paragraph,
      AllOf(HasSubstr("Rank 2 of 4 died, or left while it was needed"),
            HasSubstr("Rank 0 says: rank 2 is gone: its process ended.")));
}

// The survivors wrote their records before they detected the death.
TEST(Blame, NamesARankThatOnlyTheLauncherSawDie) {
  RankRecord survivor = rank_record(1);
  wait_in(add(survivor, 3, 0.02));
  Evidence evidence{.records = {survivor}};
  evidence.job = {.workers = 4, .rank = 0, .exit_code = 3, .seconds = 1};
  const BlameVerdict verdict = judge(evidence);
  EXPECT_EQ(verdict.fault, RootFault::kDeath);
  EXPECT_THAT(verdict.ranks, ElementsAre(0));
  EXPECT_THAT(verdict.paragraph,
              AllOf(HasSubstr("exited with code 3 1.0 s after"),
                    HasSubstr("missed by rank 1, in all_reduce #3")));
}

// Of two ranks that died without a record. The launcher saw which died first.
TEST(Blame, AgreesWithTheLauncherOnWhichDeathIsTheCause) {
  std::vector<RankRecord> records{rank_record(0), rank_record(3)};
  for (RankRecord& record : records) add(record, 7, 0.1);
  fail(records[0], "PeerFailure", 2);
  fail(records[1], "PeerFailure", 1);
  Evidence evidence{.records = records};
  evidence.job = {.workers = 4, .rank = 1, .exit_code = 3, .seconds = 1};
  EXPECT_THAT(judge(evidence).ranks, ElementsAre(1));
  // The cause is on another host.
  evidence.job->lost_a_peer = true;
  EXPECT_THAT(judge(evidence).ranks, ElementsAre(2));
}

TEST(Blame, NamesARankThatOnlyLostAPeerForWantOfAnotherCause) {
  RankRecord gave_up = rank_record(0);
  add(gave_up, 9, 30);
  Evidence evidence{.records = {gave_up}};
  evidence.job = {.workers = 4, .rank = 1, .exit_code = 1, .lost_a_peer = true};
  EXPECT_EQ(judge(evidence).fault, RootFault::kDeath);
  fail(evidence.records.front(), "Timeout");
  EXPECT_EQ(judge(evidence).fault, RootFault::kAbsence);
}

TEST(Blame, FollowsErrorsToTheirCause) {
  RankRecord gave_up = rank_record(0);
  add(gave_up, 9, 30);
  fail(gave_up, "Timeout");
  RankRecord second = rank_record(1);
  add(second, 9, 30);
  fail(second, "PeerFailure", 0);
  RankRecord third = rank_record(2);
  add(third, 9, 29);
  fail(third, "PeerFailure", 1);
  RankRecord late = rank_record(3);
  complete(add(late, 8, 40), 31);
  const BlameVerdict verdict = judge_records({gave_up, second, third, late});
  EXPECT_EQ(verdict.fault, RootFault::kAbsence);
  EXPECT_THAT(verdict.ranks, ElementsAre(3));
  EXPECT_EQ(verdict.paragraph,
            "Rank 3 of 4 did not come to all_reduce #9 (sum, 16 x float32) of "
            "group \"default\", in which rank 0 gave up after 30.0 s. Rank 3 "
            "(on host node-1) did its own work: its last operation, all_reduce "
            "#8 (sum, 16 x float32), completed 31.0 s before its record was "
            "written.");
}

TEST(Blame, SaysWhatARankWithoutARecordMeans) {
  RankRecord gave_up = rank_record(0);
  add(gave_up, 9, 30);
  fail(gave_up, "Timeout");
  RankRecord came = rank_record(1);
  add(came, 9, 30);
  RankRecord also_came = rank_record(3);
  add(also_came, 10, 20);
  const BlameVerdict verdict = judge_records({gave_up, came, also_came});
  EXPECT_EQ(verdict.fault, RootFault::kAbsence);
  EXPECT_THAT(verdict.ranks, ElementsAre(2));
  EXPECT_THAT(
      verdict.paragraph,
      HasSubstr("Rank 2 left no record: it was dead, stopped or unreachable."));
}

// Between SIGCONT and its end by SIGTERM such a rank may write its record.
TEST(Blame, SaysThatARankWasStoppedWhetherOrNotItWroteARecord) {
  std::vector<RankRecord> records{rank_record(0), rank_record(1),
                                  rank_record(2)};
  for (RankRecord& record : records) add(record, 9, 30);
  fail(records[0], "Timeout");
  RankRecord stopped = rank_record(3);
  complete(add(stopped, 8, 40), 31);
  for (const bool wrote : {false, true}) {
    if (wrote) records.push_back(stopped);
    Evidence evidence{.records = records};
    evidence.job = {.workers = 4, .exit_code = 1, .stopped = {3}};
    const BlameVerdict verdict = judge(evidence);
    EXPECT_EQ(verdict.fault, RootFault::kAbsence);
    EXPECT_THAT(verdict.ranks, ElementsAre(3));
    EXPECT_THAT(verdict.paragraph,
                HasSubstr("A signal (SIGSTOP or SIGTSTP) had stopped the "
                          "process of rank 3."));
    EXPECT_THAT(verdict.next, HasSubstr("what stopped rank 3"));
  }
}

TEST(Blame, ShowsWhoCalledWhatWhenRanksDisagree) {
  std::vector<RankRecord> records;
  for (int rank = 0; rank < 4; ++rank) {
    RankRecord record = rank_record(rank);
    complete(add(record, 4, 3), 2);
    OperationRecord& operation = add(record, 5, 1, rank == 2 ? 17 : 16);
    if (rank == 2) operation.label = "the head's gradients";
    fail(record, "Mismatch");
    records.push_back(record);
  }
  const Evidence evidence{.records = records};
  const BlameVerdict verdict = judge(evidence);
  EXPECT_EQ(verdict.fault, RootFault::kDisagreement);
  EXPECT_THAT(verdict.ranks, ElementsAre(2));
  EXPECT_THAT(
      to_text(verdict, evidence),
      AllOf(HasSubstr("number 5 of the group's collectives"),
            HasSubstr("Against the others: rank 2."),
            HasSubstr("\n  called:  all_reduce #5 (sum, 16 x float32) by ranks "
                      "0, 1, 3\n"),
            HasSubstr("\n  called:  all_reduce #5 (sum, 17 x float32) at the "
                      "head's gradients by rank 2\n"),
            HasSubstr("\n  records: of ranks 0, 1, 2, 3\n")));
}

TEST(Blame, NamesTheRankAgainstTheOthersWhereEveryPlaceDiffers) {
  std::vector<RankRecord> records;
  for (int rank = 0; rank < 3; ++rank) {
    RankRecord record = rank_record(rank);
    add(record, 5, 1, rank == 1 ? 17 : 16).label =
        "loop.cc:1" + std::to_string(rank) + "\n\x1b[2J";
    fail(record, "Mismatch");
    records.push_back(record);
  }
  const Evidence evidence{.records = records};
  const BlameVerdict verdict = judge(evidence);
  EXPECT_THAT(verdict.ranks, ElementsAre(1));
  EXPECT_EQ(verdict.operation, "all_reduce #5 (sum, 16 x float32)");
  EXPECT_THAT(
      to_text(verdict, evidence),
      AllOf(HasSubstr("Against the others: rank 1."),
            HasSubstr("\n  called:  all_reduce #5 (sum, 17 x float32) at "
                      "loop.cc:11??[2J by rank 1\n")));
}

TEST(Blame, FindsADisagreementBehindATimeout) {
  RankRecord one = rank_record(0);
  add(one, 5, 30, 16);
  fail(one, "Timeout");
  RankRecord other = rank_record(1);
  add(other, 5, 30, 17);
  const BlameVerdict verdict = judge_records({one, other});
  EXPECT_EQ(verdict.fault, RootFault::kDisagreement);
  EXPECT_THAT(verdict.ranks, IsEmpty()) << "one against one";
}

TEST(Blame, KeepsGroupsApart) {
  std::vector<RankRecord> records;
  for (int rank = 0; rank < 4; ++rank) {
    RankRecord record = rank_record(rank);
    complete(add(record, 5, 60), 50);
    const std::vector<int> members =
        rank < 2 ? std::vector{0, 1} : std::vector{2, 3};
    add_group(record, {.id = 1,
                       .name = rank < 2 ? "[0,1]#1" : "[2,3]#1",
                       .rank = rank % 2,
                       .size = 2,
                       .members = members});
    // Operation 1 differs between the two groups.
    if (rank != 3) {
      OperationRecord& operation = add(record, 1, 20, rank < 2 ? 1 : 2);
      operation.group = 1;
      record.groups[1].last_started = 1;
      if (rank < 2)
        complete(operation, 19);
      else
        wait_in(operation);
    }
    records.push_back(record);
  }
  const BlameVerdict verdict = judge_records(records);
  EXPECT_EQ(verdict.fault, RootFault::kAbsence);
  EXPECT_EQ(verdict.group, "[2,3]#1");
  EXPECT_THAT(verdict.ranks, ElementsAre(3));
  EXPECT_THAT(verdict.paragraph,
              HasSubstr("in which rank 2 has waited 20.0 s"));
}

TEST(Blame, SeesACircleOfRanksThatWaitForEachOther) {
  std::vector<RankRecord> records;
  for (int rank = 0; rank < 2; ++rank) {
    RankRecord record = rank_record(rank);
    for (int group = 1; group <= 2; ++group)
      add_group(record, {.id = group,
                         .name = "group " + std::to_string(group),
                         .rank = rank,
                         .size = 2,
                         .members = {0, 1}});
    OperationRecord& operation = add(record, 1, 20);
    operation.group = rank + 1;
    wait_in(operation);
    record.groups[static_cast<std::size_t>(rank) + 1].last_started = 1;
    record.groups[0].last_started = 0;
    records.push_back(record);
  }
  const BlameVerdict verdict = judge_records(records);
  EXPECT_EQ(verdict.fault, RootFault::kCircle);
  EXPECT_THAT(verdict.ranks, ElementsAre(0, 1));
  EXPECT_THAT(verdict.paragraph,
              HasSubstr("rank 0 waits in all_reduce #1 (sum, 16 x float32) of "
                        "group \"group 1\" for rank 1, rank 1 waits in"));
}

TEST(Blame, NamesTheSenderThatAReceiveWaitsFor) {
  RankRecord receiver = rank_record(0);
  OperationRecord& receive = add(receiver, 1, 20);
  receive.signature.kind = static_cast<std::uint8_t>(OperationKind::kReceive);
  receive.peer = 2;
  wait_in(receive);
  const BlameVerdict verdict = judge_records({receiver, rank_record(2)});
  EXPECT_EQ(verdict.fault, RootFault::kAbsence);
  EXPECT_THAT(verdict.ranks, ElementsAre(2));
  EXPECT_THAT(verdict.paragraph,
              AllOf(HasSubstr("Rank 2 of 4 did not do its part of receive"),
                    HasSubstr("had called nothing yet")));
}

// A rank was stopped in the middle of the operation; no record can name it.
TEST(Blame, DoesNotBlameWhoGaveUpOnAnOperationThatAllHadComeTo) {
  std::vector<RankRecord> records;
  for (int rank = 0; rank < 4; ++rank) {
    RankRecord record = rank_record(rank);
    wait_in(add(record, 2, 15));
    if (rank == 1)
      fail(record, "Timeout", -1, "timed out\n  missing: no rank\n  next: x");
    records.push_back(record);
  }
  const BlameVerdict verdict = judge_records(records);
  EXPECT_EQ(verdict.fault, RootFault::kStuck);
  EXPECT_THAT(verdict.ranks, IsEmpty());
  EXPECT_THAT(verdict.paragraph,
              HasSubstr("in which rank 1 gave up after 15.0 s. It says: "
                        "missing: no rank."));
}

TEST(Blame, SeesAnOperationThatIsStuckWithEverybodyInIt) {
  std::vector<RankRecord> records;
  for (int rank = 0; rank < 4; ++rank) {
    RankRecord record = rank_record(rank);
    wait_in(add(record, 2, 15));
    records.push_back(record);
  }
  EXPECT_EQ(judge_records(records).fault, RootFault::kStuck);
}

TEST(Blame, FindsNothingInAJobThatGoesOn) {
  RankRecord ahead = rank_record(0);
  wait_in(add(ahead, 100, 0.01));
  RankRecord behind = rank_record(1);
  complete(add(behind, 99, 0.02), 0.01);
  const BlameVerdict verdict = judge_records({ahead, behind});
  EXPECT_EQ(verdict.fault, RootFault::kNone);
  EXPECT_THAT(verdict.ranks, IsEmpty());
}

TEST(Blame, NamesALostNetwork) {
  RankRecord record = rank_record(1);
  add(record, 2, 1);
  fail(record, "NetworkError", -1, "the store at node-0:29500 is gone");
  const BlameVerdict verdict = judge_records({record});
  EXPECT_EQ(verdict.fault, RootFault::kNetwork);
  EXPECT_THAT(verdict.paragraph,
              AllOf(HasSubstr("Rank 1 (on host node-0)"),
                    HasSubstr("the store at node-0:29500 is gone")));
}

}  // namespace
}  // namespace lockstep
