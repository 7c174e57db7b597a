#include "src/comm/shm/rounds.h"

#include <gtest/gtest.h>

#include <vector>

#include "src/net/shared_memory.h"

namespace lockstep {
namespace {

constexpr std::uint32_t kUnits = 2;

// Both ranks of a group, driven by one thread.
class TwoRanks {
 public:
  Rounds& operator[](std::size_t rank) { return rounds_[rank]; }

  void arrive_both() {
    for (Rounds& rounds : rounds_) rounds.arrive();
    for (Rounds& rounds : rounds_) EXPECT_TRUE(rounds.all_arrived());
  }

  // Runs `count` rounds without shared work.
  void pass(std::uint64_t count) {
    rounds_ = both_after(rounds_[0].current() + count);
  }

 private:
  std::vector<Rounds> both_after(std::uint64_t round) {
    return {Rounds(view_, 0, 2, bell_, round),
            Rounds(view_, 1, 2, bell_, round)};
  }

  FileDescriptor segment_ =
      create_shared_memory("lockstep test", ControlView::bytes_for(2));
  std::shared_ptr<SharedMapping> mapping_ = map_shared_memory(segment_);
  ControlView view_{mapping_->data(), 2};
  Doorbell bell_{view_.block(), Doorbell::Cores::kEnough};
  std::vector<Rounds> rounds_ = both_after(0);
};

void take_all(Rounds& rounds) {
  std::uint32_t unit = 0;
  while (rounds.claim(kUnits, unit)) rounds.finish(1, kUnits);
}

TEST(Rounds, HandOutEachUnitOnce) {
  TwoRanks ranks;
  for (int round = 0; round < 3; ++round) {
    ranks.arrive_both();
    std::uint32_t unit = 9;
    EXPECT_TRUE(ranks[0].claim(kUnits, unit));
    EXPECT_EQ(unit, 0u);
    EXPECT_TRUE(ranks[1].claim(kUnits, unit));
    EXPECT_EQ(unit, 1u);
    EXPECT_FALSE(ranks[0].claim(kUnits, unit));
    ranks[0].finish(1, kUnits);
    EXPECT_FALSE(ranks[0].all_finished(kUnits));
    ranks[1].finish(1, kUnits);
    EXPECT_TRUE(ranks[0].all_finished(kUnits));
  }
}

TEST(Rounds, HandOutNothingOnceARankHasEndedTheWork) {
  TwoRanks ranks;
  ranks.arrive_both();
  EXPECT_FALSE(ranks[0].end_work());
  std::uint32_t unit = 0;
  EXPECT_FALSE(ranks[1].claim(kUnits, unit));
}

TEST(Rounds, EndForNoRankWhenOneGaveUpBeforeAllUnitsWereFinished) {
  TwoRanks ranks;
  ranks.arrive_both();
  std::uint32_t unit = 0;
  ranks[1].begin_part();
  EXPECT_TRUE(ranks[1].claim(kUnits, unit));
  EXPECT_TRUE(ranks[1].claim(kUnits, unit));
  EXPECT_TRUE(ranks[0].end_work());
  EXPECT_TRUE(ranks[0].is_at_work(1));
  EXPECT_FALSE(ranks[0].discard_unless_finished());
  ranks[1].finish(kUnits, kUnits);
  ranks[1].end_part();
  EXPECT_FALSE(ranks[0].is_at_work(1));
  for (const std::size_t rank : {0, 1}) {
    EXPECT_FALSE(ranks[rank].all_finished(kUnits));
    EXPECT_TRUE(ranks[rank].end_work());
    EXPECT_FALSE(ranks[rank].discard_unless_finished());
  }
}

TEST(Rounds, EndForAllRanksWhenOneGaveUpAfterAllUnitsWereFinished) {
  TwoRanks ranks;
  ranks.arrive_both();
  take_all(ranks[0]);
  EXPECT_TRUE(ranks[0].end_work());
  EXPECT_TRUE(ranks[0].discard_unless_finished());
  EXPECT_TRUE(ranks[1].all_finished(kUnits));
}

// The rank arrived in the round, got a core only when all the work was done,
// and has not checked yet; the other is in the next round already, waits for it
// there in vain and gives up.
TEST(Rounds, HandOutNothingToARankThatIsBehindTheOneThatEndedTheWork) {
  TwoRanks ranks;
  ranks.arrive_both();
  take_all(ranks[0]);
  ranks[0].arrive();
  EXPECT_FALSE(ranks[0].end_work());
  std::uint32_t unit = 0;
  EXPECT_FALSE(ranks[1].claim(kUnits, unit));
  EXPECT_TRUE(ranks[1].all_finished(kUnits));
  EXPECT_FALSE(ranks[1].end_work());
}

// Issue 19: a counter that was last used 2^31 rounds before counted as one of a
// later round, and no rank claimed work any more; one of 2^32 rounds before
// counted as one of this round, whose work was done. Some rounds have work,
// then many have none, like operations that travel in slots.
TEST(Rounds, HandOutUnitsHoweverManyRoundsPassedWithoutWork) {
  constexpr std::uint64_t kOne = 1;
  for (const std::uint64_t passed :
       {kOne << 15, kOne << 16, (kOne << 31) - 1, kOne << 31, (kOne << 31) + 10,
        (kOne << 32) - 1, kOne << 32, (kOne << 32) + 1, kOne << 47,
        (kOne << 48) - 3}) {
    for (const bool was_ended : {false, true}) {
      TwoRanks ranks;
      ranks.arrive_both();
      take_all(ranks[0]);
      if (was_ended) ranks[0].end_work();
      ranks.pass(passed);
      ranks.arrive_both();
      EXPECT_FALSE(ranks[0].all_finished(kUnits)) << passed;
      std::uint32_t unit = 9;
      EXPECT_TRUE(ranks[1].claim(kUnits, unit)) << passed;
      EXPECT_EQ(unit, 0u);
      EXPECT_TRUE(ranks[0].claim(kUnits, unit));
      EXPECT_EQ(unit, 1u);
      EXPECT_FALSE(ranks[0].claim(kUnits, unit));
      ranks[0].finish(2, kUnits);
      EXPECT_TRUE(ranks[1].all_finished(kUnits)) << passed;
    }
  }
}

}  // namespace
}  // namespace lockstep
