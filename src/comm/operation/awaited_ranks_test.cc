#include "src/comm/operation/awaited_ranks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

namespace lockstep {
namespace {

using testing::ElementsAre;

constexpr int kRanksThatWait = 6;

// The ranks that wait, and for which ranks.
using Waits = std::map<int, AwaitedRanks>;

// Rank 0 asks who is late for an operation that waits for `ranks`, while it
// waits for `own`.
std::vector<int> ends(const std::vector<int>& ranks,
                      const std::optional<AwaitedRanks>& own,
                      const Waits& waits) {
  const auto find_waiting =
      [&](const std::vector<int>& some) -> std::optional<WaitingRank> {
    for (const int rank : some)
      if (const auto found = waits.find(rank); found != waits.end())
        return WaitingRank{rank, found->second};
    return std::nullopt;
  };
  return ends_of_waits({ranks}, {0, kRanksThatWait, own}, find_waiting);
}

TEST(EndsOfWaits, AreRanksThatDoNotWait) {
  const Waits waits{{1, {{2}}}, {2, {{3, 4}}}, {4, {{3}}}};
  EXPECT_THAT(ends({1, 2}, AwaitedRanks{{1, 2}}, waits), ElementsAre(3));
}

TEST(EndsOfWaits, AreTheRanksOfACircle) {
  const Waits waits{{1, {{2}}}, {2, {{1}}}, {3, {{1}}}};
  EXPECT_THAT(ends({3}, AwaitedRanks{{3}}, waits), ElementsAre(1, 2));
  EXPECT_THAT(ends({3, 4}, AwaitedRanks{{3, 4}}, waits), ElementsAre(4, 1, 2));
}

TEST(EndsOfWaits, AreTheOthersOfACircleThroughTheRankThatAsks) {
  const Waits waits{{1, {{2}}}, {2, {{0}}}};
  EXPECT_THAT(ends({1}, AwaitedRanks{{1}}, waits), ElementsAre(1, 2));
}

// Its thread waits for rank 3, or computes, while a message from rank 1 comes
// to its deadline.
TEST(EndsOfWaits, AreNoCircleWhereTheRankThatAsksWaitsForAnotherOne) {
  const Waits waits{{1, {{0, 3}}}};
  EXPECT_THAT(ends({1}, AwaitedRanks{{3}}, waits), ElementsAre(3));
  EXPECT_THAT(ends({1}, std::nullopt, waits), ElementsAre(3));
  EXPECT_THAT(ends({1}, std::nullopt, {{1, {{0}}}}), ElementsAre(1));
}

TEST(EndsOfWaits, AreRanksThatAnySourceWouldHelp) {
  const Waits waits{{1, {{2}}}, {2, {{0, 1, 3}, true}}};
  EXPECT_THAT(ends({1}, AwaitedRanks{{1}}, waits), ElementsAre(2));
}

}  // namespace
}  // namespace lockstep
