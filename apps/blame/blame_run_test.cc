// A job whose rank really dies, and blame's verdict on its records.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>

#include "apps/blame/blame_command.h"
#include "src/base/testing/test_directory.h"
#include "src/base/testing/test_timeout.h"
#include "src/comm/testing/rank_processes.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using testing::ElementsAre;

class BlameOfARun : public testing::Test {
 protected:
  std::vector<std::string> environment(const std::string& more) const {
    return {"LOCKSTEP_DUMP_DIR=" + folder_, more};
  }

  const TestDirectory made_;
  const std::string folder_ = made_.path();
};

TEST_F(BlameOfARun, NamesTheRankThatWasKilled) {
  RankProcesses processes(3, {LOCKSTEP_COMM_RANKS, "held_before_all_reduce"},
                          environment("VICTIM=1"));
  processes.wait_for_line(1, "holding", kTimeout);
  processes.wait_for_line(0, "published", kTimeout);
  processes.wait_for_line(2, "published", kTimeout);
  processes.send_signal(1, SIGKILL);
  for (const int survivor : {0, 2})
    EXPECT_EQ(processes.wait_for_end(survivor, kTimeout), 10);
  const Evidence evidence = read_evidence(folder_);
  EXPECT_THAT(evidence.silent(), ElementsAre(1));
  const BlameVerdict verdict = judge(evidence);
  EXPECT_EQ(verdict.fault, RootFault::kDeath) << verdict.paragraph;
  EXPECT_THAT(verdict.ranks, ElementsAre(1));
  EXPECT_EQ(verdict.operation, "all_reduce #2 (sum, 1 x float32)");
}

TEST_F(BlameOfARun, NamesTheRankThatDisagreed) {
  RankProcesses processes(3, {LOCKSTEP_COMM_RANKS, "mismatch"},
                          environment("SEED=1"));
  for (int rank = 0; rank < 3; ++rank)
    EXPECT_EQ(processes.wait_for_end(rank, kTimeout), 10);
  const BlameVerdict verdict = judge(read_evidence(folder_));
  EXPECT_EQ(verdict.fault, RootFault::kDisagreement) << verdict.paragraph;
  EXPECT_THAT(verdict.ranks, ElementsAre(1));
}

// Rank 1 is alive, but never joins.
TEST_F(BlameOfARun, NamesTheRankThatDidNotCome) {
  RankProcesses processes(3, {LOCKSTEP_COMM_RANKS, "held_before_all_reduce"},
                          environment("LOCKSTEP_TIMEOUT=0.5"));
  for (const int waiting : {0, 2})
    EXPECT_EQ(processes.wait_for_end(waiting, kTimeout), 10);
  const BlameVerdict verdict = judge(read_evidence(folder_));
  EXPECT_EQ(verdict.fault, RootFault::kAbsence) << verdict.paragraph;
  EXPECT_THAT(verdict.ranks, ElementsAre(1));
}

}  // namespace
}  // namespace lockstep
