#include "src/planning/owner_ranges.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

namespace lockstep {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;
using Range = OwnerRanges::Range;

constexpr int kNobody = -1;

// The rank that gets each element of a block, or kNobody. Fails when two ranges
// overlap or an element is in no range.
std::vector<int> owners_of(const OwnerRanges& ranges, std::size_t elements) {
  constexpr int kUntold = -2;
  std::vector<int> owners(elements, kUntold);
  const auto tell = [&](const Range& range, int owner) {
    for (std::size_t i = range.begin; i < range.begin + range.elements; ++i) {
      EXPECT_EQ(owners.at(i), kUntold) << "element " << i;
      owners.at(i) = owner;
    }
  };
  for (const auto& round : ranges.rounds)
    for (std::size_t rank = 0; rank < round.size(); ++rank)
      tell(round[rank], static_cast<int>(rank));
  for (const Range& range : ranges.of_nobody) tell(range, kNobody);
  EXPECT_THAT(owners, testing::Not(testing::Contains(kUntold)));
  return owners;
}

TEST(OwnerRanges, GiveEachRankItsPartInOneRoundWhereParametersAreInOrder) {
  const std::vector<ParameterSize> sizes{{32}, {32}, {64}};
  const ShardPlan plan = plan_shards(sizes, 2);
  const std::vector<GradientPlace> in_order{
      {0, 0, 32}, {1, 32, 32}, {2, 64, 64}};
  const OwnerRanges ranges = owner_ranges(plan, in_order);
  ASSERT_THAT(ranges.rounds, SizeIs(1));
  EXPECT_THAT(ranges.rounds[0], ElementsAre(Range{0, 64}, Range{64, 64}));
  EXPECT_THAT(ranges.of_nobody, IsEmpty());
}

// The backward pass produces gradients in reverse order; the elements of a cut
// parameter stay in forward order.
TEST(OwnerRanges, TakeAnotherRoundForARankWhoseStretchIsInterrupted) {
  const std::vector<ParameterSize> sizes{{16}, {64}, {48}};
  const ShardPlan plan = plan_shards(sizes, 2);  // cut within the second
  const std::vector<GradientPlace> reversed{
      {2, 0, 48}, {1, 48, 64}, {0, 112, 16}};
  const OwnerRanges ranges = owner_ranges(plan, reversed);
  ASSERT_THAT(ranges.rounds, SizeIs(2));
  EXPECT_THAT(ranges.rounds[0], ElementsAre(Range{48, 48}, Range{0, 48}));
  EXPECT_THAT(ranges.rounds[1], ElementsAre(Range{112, 16}, Range{96, 16}));
}

TEST(OwnerRanges, LeaveToNobodyWhatThePlanDoesNotKnow) {
  const ShardPlan plan = plan_shards(std::vector<ParameterSize>{{16}}, 3);
  const OwnerRanges ranges = owner_ranges(
      plan, std::vector<GradientPlace>{{{}, 0, 5}, {{}, 5, 2}, {0, 7, 16}});
  EXPECT_THAT(ranges.of_nobody, ElementsAre(Range{0, 7}));
  EXPECT_THAT(ranges.rounds, SizeIs(1));
  EXPECT_THAT(owner_ranges(plan, {}).rounds, IsEmpty());
}

TEST(OwnerRanges, GiveEachElementOnceToWhomThePlanGivesIt) {
  const auto seed = std::random_device()();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  for (int again = 0; again < 300; ++again) {
    const std::size_t ranks = 1 + random() % 6;
    std::vector<ParameterSize> sizes(random() % 12);
    for (ParameterSize& size : sizes) size.elements = random() % 200;
    const ShardPlan plan = plan_shards(sizes, ranks);
    std::vector<std::size_t> order(sizes.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::ranges::shuffle(order, random);
    std::vector<GradientPlace> places;
    std::vector<int> expected;
    for (const std::size_t parameter : order) {
      const std::size_t elements = sizes[parameter].elements;
      const std::size_t begin = expected.size();
      expected.resize(begin + elements, kNobody);
      places.push_back({.begin = begin, .elements = elements});
      if (random() % 5 == 0) continue;
      places.back().parameter = parameter;
      for (std::size_t rank = 0; rank < ranks; ++rank)
        for (const auto& piece : plan.ranks[rank])
          if (piece.parameter == parameter)
            std::fill_n(expected.begin() +
                            static_cast<std::ptrdiff_t>(begin + piece.begin),
                        piece.elements, static_cast<int>(rank));
    }
    EXPECT_EQ(owners_of(owner_ranges(plan, places), expected.size()), expected);
  }
}

}  // namespace
}  // namespace lockstep
