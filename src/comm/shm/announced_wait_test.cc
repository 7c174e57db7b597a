#include "src/comm/shm/announced_wait.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <vector>

#include "src/net/shared_memory.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr int kFourRanks = 4;

// What the others say, as rank 0 reads it.
class AnnouncedWaits : public ::testing::Test {
 protected:
  Rounds rounds_of(int rank) { return {view_, rank, kFourRanks, bell_}; }
  void announce(int rank, std::optional<int> peer) {
    AnnouncedWait(view_.rank(rank)).renew(peer);
  }
  std::optional<std::vector<int>> awaited_by(int rank) {
    const auto awaited = wait_of(context_, rank, 1min);
    if (!awaited) return std::nullopt;
    return awaited->ranks;
  }

  FileDescriptor segment_ =
      create_shared_memory("lockstep test", ControlView::bytes_for(kFourRanks));
  std::shared_ptr<SharedMapping> mapping_ = map_shared_memory(segment_);
  ControlView view_{mapping_->data(), kFourRanks};
  Doorbell bell_{view_.block(), Doorbell::Cores::kEnough};
  Rounds rounds_ = rounds_of(0);
  ShmContext context_{
      {.name = "g", .rank = 0, .size = kFourRanks}, view_, &rounds_, nullptr};
};

TEST_F(AnnouncedWaits, AreThoseOfRanksThatSaidSo) {
  EXPECT_EQ(awaited_by(1), std::nullopt);
  AnnouncedWait message(view_.rank(1));
  EXPECT_EQ(awaited_by(1), std::nullopt);
  message.renew(3);
  EXPECT_THAT(awaited_by(1), ::testing::Optional(ElementsAre(3)));
  message.end();
  EXPECT_EQ(awaited_by(1), std::nullopt);
}

TEST_F(AnnouncedWaits, AreForNoRankForCertainInAReceiveFromAnySource) {
  announce(1, kAnySource);
  const auto awaited = wait_of(context_, 1, 1min);
  ASSERT_TRUE(awaited);
  EXPECT_THAT(awaited->ranks, IsEmpty());
  EXPECT_TRUE(awaited->any_suffices);
}

TEST_F(AnnouncedWaits, AreForTheRanksThatHaveNotArrivedInACollective) {
  rounds_of(1).arrive();
  rounds_of(2).arrive();
  announce(1, std::nullopt);
  EXPECT_THAT(awaited_by(1), ::testing::Optional(ElementsAre(0, 3)));
}

TEST_F(AnnouncedWaits, AreForTheRanksAtWorkOnceAllHaveArrived) {
  std::vector<Rounds> rounds;
  for (int rank = 0; rank < kFourRanks; ++rank) {
    rounds.push_back(rounds_of(rank));
    rounds.back().arrive();
  }
  announce(1, std::nullopt);
  // It has no part to wait for in others' work, as in a small operation.
  EXPECT_EQ(awaited_by(1), std::nullopt);
  rounds[1].begin_part();
  rounds[1].end_part();
  EXPECT_THAT(awaited_by(1), ::testing::Optional(ElementsAre(0, 2, 3)));
  rounds[3].begin_part();
  EXPECT_THAT(awaited_by(1), ::testing::Optional(ElementsAre(3)));
  for (const std::size_t rank : {0u, 2u, 3u}) rounds[rank].end_part();
  EXPECT_EQ(awaited_by(1), std::nullopt);
}

TEST_F(AnnouncedWaits, CountNoMoreWhereARankDoesNotRenewThem) {
  announce(1, 3);
  view_.rank(1).awaited_at -= std::chrono::nanoseconds(2min).count();
  EXPECT_EQ(awaited_by(1), std::nullopt);
  announce(1, 3);
  EXPECT_THAT(awaited_by(1), ::testing::Optional(ElementsAre(3)));
}

}  // namespace
}  // namespace lockstep
