#include "src/comm/shm/announced_wait.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>

#include "src/net/shared_memory.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;

constexpr int kRanks = 4;

// What the others say, as rank 0 reads it.
class AnnouncedWaits : public ::testing::Test {
 protected:
  Rounds rounds_of(int rank) { return {view_, rank, kRanks, bell_}; }
  AnnouncedWait wait(int rank, std::optional<int> peer) {
    return {view_.rank(rank), peer};
  }
  std::optional<std::vector<int>> awaited_by(int rank) {
    const auto awaited = wait_of(context_, rank, 1min);
    if (!awaited) return std::nullopt;
    return awaited->ranks;
  }

  FileDescriptor segment_ =
      create_shared_memory("lockstep test", ControlView::bytes_for(kRanks));
  std::shared_ptr<SharedMapping> mapping_ = map_shared_memory(segment_);
  ControlView view_{mapping_->data(), kRanks};
  Doorbell bell_{view_.block(), Doorbell::Cores::kEnough};
  Rounds rounds_ = rounds_of(0);
  ShmContext context_{
      {.name = "g", .rank = 0, .size = kRanks}, view_, &rounds_, nullptr};
};

TEST_F(AnnouncedWaits, AreThoseOfRanksThatSaidSo) {
  EXPECT_EQ(awaited_by(1), std::nullopt);
  AnnouncedWait message = wait(1, 3);
  EXPECT_EQ(awaited_by(1), std::nullopt);
  message.renew();
  EXPECT_THAT(awaited_by(1), ::testing::Optional(ElementsAre(3)));
  message.end();
  EXPECT_EQ(awaited_by(1), std::nullopt);
}

TEST_F(AnnouncedWaits, AreForEveryOtherRankInAReceiveFromAnySource) {
  wait(1, kAnySource).renew();
  const auto awaited = wait_of(context_, 1, 1min);
  ASSERT_TRUE(awaited);
  EXPECT_THAT(awaited->ranks, ElementsAre(0, 2, 3));
  EXPECT_TRUE(awaited->any_suffices);
}

TEST_F(AnnouncedWaits, AreForTheRanksThatHaveNotArrivedInACollective) {
  rounds_of(1).arrive();
  rounds_of(2).arrive();
  wait(1, std::nullopt).renew();
  EXPECT_THAT(awaited_by(1), ::testing::Optional(ElementsAre(0, 3)));
}

TEST_F(AnnouncedWaits, AreForTheRanksAtWorkOnceAllHaveArrived) {
  for (int rank = 0; rank < kRanks; ++rank) {
    Rounds rounds = rounds_of(rank);
    rounds.arrive();
    if (rank == 1 || rank == 3) rounds.begin_part();
  }
  wait(1, std::nullopt).renew();
  EXPECT_THAT(awaited_by(1), ::testing::Optional(ElementsAre(3)));
  wait(3, std::nullopt).renew();
  EXPECT_THAT(awaited_by(3), ::testing::Optional(ElementsAre(1)));
}

TEST_F(AnnouncedWaits, CountNoMoreWhereARankDoesNotRenewThem) {
  wait(1, 3).renew();
  view_.rank(1).awaited_at -= std::chrono::nanoseconds(2min).count();
  EXPECT_EQ(awaited_by(1), std::nullopt);
  wait(1, 3).renew();
  EXPECT_THAT(awaited_by(1), ::testing::Optional(ElementsAre(3)));
}

TEST_F(AnnouncedWaits, StayThoseOfAThreadWhereAnotherEndsItsOwn) {
  AnnouncedWait first = wait(1, 2);
  first.renew();
  wait(1, 3).renew();
  first.end();
  EXPECT_THAT(awaited_by(1), ::testing::Optional(ElementsAre(3)));
}

}  // namespace
}  // namespace lockstep
