#include "lockstep/comm/shm/rounds.h"

#include <gtest/gtest.h>

#include <array>

#include "lockstep/net/shared_memory.h"

namespace lockstep {
namespace {

constexpr std::uint32_t kUnits = 2;

// Both ranks of a group, in the hands of one thread.
class TwoRanks {
 public:
  Rounds& operator[](std::size_t rank) { return rounds_[rank]; }

  void arrive_both() {
    for (Rounds& rounds : rounds_) rounds.arrive();
    for (Rounds& rounds : rounds_) EXPECT_TRUE(rounds.all_arrived());
  }

 private:
  FileDescriptor segment_ =
      create_shared_memory("lockstep test", ControlView::bytes_for(2));
  std::shared_ptr<SharedMapping> mapping_ = map_shared_memory(segment_);
  ControlView view_{mapping_->data(), 2};
  Doorbell bell_{view_.block(), Doorbell::Cores::kEnough};
  std::array<Rounds, 2> rounds_{Rounds(view_, 0, 2, bell_),
                                Rounds(view_, 1, 2, bell_)};
};

void take_all(Rounds& rounds) {
  std::uint32_t unit = 0;
  while (rounds.claim(kUnits, unit)) rounds.finish(1);
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
    ranks[0].finish(1);
    EXPECT_FALSE(ranks[0].all_finished(kUnits));
    ranks[1].finish(1);
    EXPECT_TRUE(ranks[0].all_finished(kUnits));
  }
}

TEST(Rounds, HandOutNothingOnceARankHasEndedTheWork) {
  TwoRanks ranks;
  ranks.arrive_both();
  ranks[0].end_work(std::array{1});
  std::uint32_t unit = 0;
  EXPECT_FALSE(ranks[1].claim(kUnits, unit));
}

// It arrived in the round, found a core only when all the work was done, and
// has not looked yet; the other is in the next round already, waits for it
// there in vain and gives up.
TEST(Rounds, HandOutNothingToARankThatIsBehindTheOneThatEndedTheWork) {
  TwoRanks ranks;
  ranks.arrive_both();
  take_all(ranks[0]);
  ranks[0].arrive();
  ranks[0].end_work(std::array{1});
  std::uint32_t unit = 0;
  EXPECT_FALSE(ranks[1].claim(kUnits, unit));
}

}  // namespace
}  // namespace lockstep
