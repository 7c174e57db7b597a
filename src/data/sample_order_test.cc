#include "lockstep/data/sample_order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "lockstep/base/error.h"
#include "src/base/testing/error_text.h"
#include "src/data/random_permutation.h"

namespace lockstep {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// CRC-32 of the indices as little-endian int64, as zlib.crc32 of NumPy's bytes.
unsigned long checksum(const std::vector<std::int64_t>& indices) {
  return crc32_z(0, reinterpret_cast<const Bytef*>(indices.data()),
                 indices.size() * sizeof(std::int64_t));
}

std::vector<std::int64_t> in_order(std::int64_t length, int world_size,
                                   int rank) {
  return sampler_sequence(
      length, {.world_size = world_size, .rank = rank, .shuffle = false});
}

std::string message_of(std::int64_t length, const SamplerOptions& options) {
  return error_text([&] { sampler_sequence(length, options); });
}

// Expected values: torch 2.13, torch.randperm(n, generator=g).
TEST(RandomPermutation, IsPytorchs) {
  EXPECT_THAT(random_permutation(10, 0),
              ElementsAre(4, 1, 7, 5, 3, 9, 0, 8, 6, 2));
  EXPECT_EQ(checksum(random_permutation(100'000, 42)), 0x4eea470au);
}

TEST(RandomPermutation, TakesTheLowerHalfOfTheSeedAsPytorchDoes) {
  EXPECT_EQ(random_permutation(50, (std::uint64_t{1} << 32) + 5),
            random_permutation(50, 5));
  EXPECT_NE(random_permutation(50, 5), random_permutation(50, 6));
}

// Expected values: Python 3.11, random.Random(seed).shuffle().
TEST(RandomPermutation, ForPythonIsPythons) {
  EXPECT_THAT(python_permutation(10, 1234),
              ElementsAre(2, 8, 3, 5, 6, 4, 9, 0, 1, 7));
  EXPECT_THAT(python_permutation(10, (std::uint64_t{1} << 40) + 3),
              ElementsAre(8, 5, 6, 7, 9, 2, 4, 1, 0, 3));
  EXPECT_EQ(checksum(python_permutation(60'000, 1234)), 0xd77c8680u);
}

TEST(RandomPermutation, RefusesANegativeCount) {
  EXPECT_THROW(random_permutation(-1, 0), InvalidArgument);
  EXPECT_THROW(python_permutation(-1, 0), InvalidArgument);
  EXPECT_THROW(python_permutation(std::int64_t{1} << 32, 0), InvalidArgument);
}

TEST(SamplerSequence, DealsIndicesToRanksInTurn) {
  EXPECT_THAT(in_order(6, 2, 0), ElementsAre(0, 2, 4));
  EXPECT_THAT(in_order(6, 2, 1), ElementsAre(1, 3, 5));
}

TEST(SamplerSequence, PadsWithTheFirstIndices) {
  EXPECT_THAT(in_order(4, 3, 0), ElementsAre(0, 3));
  EXPECT_THAT(in_order(4, 3, 1), ElementsAre(1, 0));
  EXPECT_THAT(in_order(4, 3, 2), ElementsAre(2, 1));
}

TEST(SamplerSequence, PadsSeveralTimesOverWhenThereAreMoreRanksThanSamples) {
  for (int rank = 0; rank < 8; ++rank)
    EXPECT_THAT(in_order(3, 8, rank), ElementsAre(rank % 3));
}

TEST(SamplerSequence, DropsTheLastIndicesOnRequest) {
  const SamplerOptions options{
      .world_size = 3, .rank = 1, .shuffle = false, .drop_last = true};
  EXPECT_THAT(sampler_sequence(8, options), ElementsAre(1, 4));
  EXPECT_THAT(sampler_sequence(9, options), ElementsAre(1, 4, 7));
  EXPECT_THAT(sampler_sequence(2, options), IsEmpty());
}

TEST(SamplerSequence, OfNoSamplesIsEmpty) {
  for (const bool drop_last : {false, true})
    EXPECT_THAT(sampler_sequence(0, {.world_size = 3, .drop_last = drop_last}),
                IsEmpty());
}

TEST(SamplerSequence, DependsOnTheSumOfSeedAndEpoch) {
  const auto sequence = [](std::uint64_t seed, std::uint64_t epoch) {
    return sampler_sequence(100, {.seed = seed, .epoch = epoch});
  };
  EXPECT_EQ(sequence(3, 4), random_permutation(100, 7));
  EXPECT_NE(sequence(3, 4), sequence(3, 5));
}

TEST(SamplerSequence, IsAsLongAsItsSizeSays) {
  for (std::int64_t length = 0; length < 20; ++length)
    for (const bool drop_last : {false, true}) {
      const SamplerOptions options{
          .world_size = 4, .rank = 3, .drop_last = drop_last};
      EXPECT_EQ(std::ssize(sampler_sequence(length, options)),
                samples_per_rank(length, options));
    }
}

TEST(SamplerSequence, RefusesWhatCannotBe) {
  EXPECT_THAT(message_of(-1, {}), HasSubstr("-1 samples"));
  EXPECT_THAT(message_of(INT64_MAX, {}), HasSubstr("expected 0 to"));
  EXPECT_THAT(message_of(9, {.world_size = 0}), HasSubstr("over 0 ranks"));
  EXPECT_THAT(message_of(9, {.world_size = 2, .rank = 2}),
              HasSubstr("ranks go from 0 to 1"));
  EXPECT_THAT(message_of(9, {.world_size = 2, .rank = -1}),
              HasSubstr("rank -1"));
}

// Trains `consumed` samples with one number of ranks and the rest with another.
std::vector<std::int64_t> seen_by_two_runs(std::int64_t length, int before,
                                           std::int64_t steps, int after) {
  const auto sequences = [&](int world_size, std::int64_t consumed) {
    std::vector<std::vector<std::int64_t>> all;
    for (int rank = 0; rank < world_size; ++rank)
      all.push_back(sampler_sequence(length, {.world_size = world_size,
                                              .rank = rank,
                                              .seed = 7,
                                              .consumed = consumed}));
    return all;
  };
  std::vector<std::int64_t> seen;
  for (const auto& sequence : sequences(before, 0))
    seen.insert(seen.end(), sequence.begin(), sequence.begin() + steps);
  for (const auto& sequence : sequences(after, std::ssize(seen)))
    seen.insert(seen.end(), sequence.begin(), sequence.end());
  return seen;
}

TEST(SamplerSequence, GoesOnWithOtherRanksWithoutLosingOrRepeatingASample) {
  for (const int before : {1, 2, 3, 8})
    for (const int after : {1, 2, 3, 8})
      for (const std::int64_t steps : {0, 1, 2, 3}) {
        // Each of the two numbers of ranks divides what it is given.
        const std::int64_t length = before * steps + after * 5;
        std::vector<std::int64_t> seen =
            seen_by_two_runs(length, before, steps, after);
        std::ranges::sort(seen);
        EXPECT_EQ(seen, sampler_sequence(length, {.shuffle = false}))
            << before << " ranks, then " << after;
      }
}

TEST(SamplerSequence, GoesOnAsTheSameRanksWouldHave) {
  for (const bool drop_last : {false, true})
    for (const std::int64_t steps : {0, 1, 3, 6, 7}) {
      SamplerOptions options{
          .world_size = 3, .rank = 2, .seed = 1, .drop_last = drop_last};
      auto whole = sampler_sequence(20, options);
      whole.erase(whole.begin(),
                  whole.begin() + std::min(steps, std::ssize(whole)));
      options.consumed = 3 * steps;
      EXPECT_EQ(sampler_sequence(20, options), whole) << steps << " steps";
    }
  EXPECT_THROW(sampler_sequence(20, {.consumed = -1}), InvalidArgument);
  EXPECT_THAT(
      sampler_sequence(20, {.world_size = 2, .rank = 1, .consumed = INT64_MAX}),
      IsEmpty());
}

TEST(ShareOfRank, DividesAnyOrder) {
  const std::vector<std::int64_t> order = {7, 7, 3, 5, 1};
  EXPECT_THAT(share_of_rank(order, {.world_size = 2, .rank = 1}),
              ElementsAre(7, 5, 7));
  EXPECT_THAT(
      share_of_rank(order, {.world_size = 2, .rank = 1, .drop_last = true}),
      ElementsAre(7, 5));
  EXPECT_THAT(share_of_rank({}, {.world_size = 2, .rank = 1}), IsEmpty());
}

// Expected values: torch 2.13, torch.multinomial(weights, 8, True, generator).
TEST(WeightedOrder, IsPytorchs) {
  const std::vector<double> weights = {0.5, 3, 0, 1, 1.5};
  EXPECT_THAT(weighted_order(weights, {.count = 8, .seed = 42}),
              ElementsAre(0, 0, 1, 0, 1, 1, 4, 4));
}

TEST(WeightedOrder, DrawsInProportionToTheWeights) {
  const std::vector<double> weights = {1, 2, 0, 5};
  for (const bool replacement : {true, false}) {
    std::vector<double> first(weights.size());
    constexpr int kOrders = 20'000;
    for (int seed = 0; seed < kOrders; ++seed)
      ++first[static_cast<std::size_t>(weighted_order(
          weights, {.count = 2,
                    .replacement = replacement,
                    .seed = static_cast<std::uint64_t>(seed)})[0])];
    // Four standard deviations are at most 0.0142.
    for (std::size_t i = 0; i < weights.size(); ++i)
      EXPECT_NEAR(first[i] / kOrders, weights[i] / 8, 0.015) << "sample " << i;
    EXPECT_EQ(first[2], 0);
  }
}

TEST(WeightedOrder, WithoutReplacementDrawsEachSampleOnce) {
  const std::vector<double> weights = {1e-310, 2, 0, 5, 1e300};
  for (std::uint64_t seed = 0; seed < 100; ++seed)
    EXPECT_THAT(weighted_order(
                    weights, {.count = 4, .replacement = false, .seed = seed}),
                testing::UnorderedElementsAre(0, 1, 3, 4));
}

TEST(WeightedOrder, RefusesWhatCannotBeDrawn) {
  const auto message = [](const std::vector<double>& weights,
                          const WeightedOptions& options) {
    return error_text([&] { weighted_order(weights, options); });
  };
  EXPECT_THAT(message({1, -1}, {}), HasSubstr("that of sample 1 is -1"));
  EXPECT_THAT(message({std::nan("")}, {}), HasSubstr("sample 0 is nan"));
  EXPECT_THAT(message({1, HUGE_VAL}, {}), HasSubstr("sample 1 is inf"));
  EXPECT_THAT(message({1e308, 1e308}, {}), HasSubstr("2 weights is inf"));
  EXPECT_THAT(message({0, 0}, {}), HasSubstr("2 weights is 0"));
  EXPECT_THAT(message({}, {.count = 3}), HasSubstr("0 weights is 0"));
  EXPECT_THAT(message({1, 0, 2}, {.count = 3, .replacement = false}),
              HasSubstr("without replacement: 2 of 3 have a weight above 0"));
  EXPECT_THAT(message({1}, {.count = -1}), HasSubstr("cannot draw -1"));
  EXPECT_THAT(message({1}, {.count = INT64_MAX}), HasSubstr("cannot draw 9"));
  EXPECT_THAT(weighted_order({}), IsEmpty());
}

TEST(ClassBalancedWeights, GiveEachClassTheSameSum) {
  const std::vector<std::int64_t> labels = {4, 4, 0, 4, 0, 9, 4};
  EXPECT_THAT(class_balanced_weights(labels),
              ElementsAre(0.25, 0.25, 0.5, 0.25, 0.5, 1, 0.25));
}

TEST(StratifiedOrder, SpreadsEachClassEvenly) {
  std::vector<std::int64_t> labels(1000, 0);
  std::fill_n(labels.begin(), 200, 1);
  std::fill_n(labels.begin() + 200, 10, 2);
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const auto order = stratified_order(labels, seed);
    std::vector<std::int64_t> sorted = order;
    std::ranges::sort(sorted);
    EXPECT_EQ(sorted, sampler_sequence(1000, {.shuffle = false}));
    for (std::size_t begin = 0; begin < order.size(); begin += 100) {
      std::vector<int> counts(3);
      for (std::size_t i = begin; i < begin + 100; ++i)
        ++counts[static_cast<std::size_t>(
            labels[static_cast<std::size_t>(order[i])])];
      EXPECT_NEAR(counts[1], 20, 2) << "seed " << seed;
      EXPECT_NEAR(counts[2], 1, 1) << "seed " << seed;
    }
  }
  EXPECT_NE(stratified_order(labels, 0), stratified_order(labels, 1));
  EXPECT_THAT(stratified_order({}, 0), IsEmpty());
}

TEST(StratifiedOrder, GivesEachRankSomeOfEachClass) {
  for (const std::int64_t classes : {2, 3, 10}) {
    std::vector<std::int64_t> labels(3000);
    for (std::size_t i = 0; i < labels.size(); ++i)
      labels[i] = static_cast<std::int64_t>(i) % classes;
    const auto order = stratified_order(labels, 1);
    for (int ranks = 1; ranks <= 8; ++ranks)
      for (int rank = 0; rank < ranks; ++rank) {
        std::vector<double> counts(static_cast<std::size_t>(classes));
        const auto share =
            share_of_rank(order, {.world_size = ranks, .rank = rank});
        for (const std::int64_t index : share)
          ++counts[static_cast<std::size_t>(
              labels[static_cast<std::size_t>(index)])];
        const double mean =
            static_cast<double>(share.size()) / static_cast<double>(classes);
        // Five standard deviations of independent draws.
        EXPECT_THAT(counts, testing::Each(
                                testing::DoubleNear(mean, 5 * std::sqrt(mean))))
            << classes << " classes, rank " << rank << " of " << ranks;
      }
  }
}

TEST(EachSampleOnce, CoversEverySampleExactlyOnce) {
  for (std::int64_t length = 0; length < 30; ++length)
    for (int world_size = 1; world_size <= 9; ++world_size) {
      std::vector<int> seen(static_cast<std::size_t>(length), 0);
      for (int rank = 0; rank < world_size; ++rank)
        for (const std::int64_t index :
             each_sample_once(length, world_size, rank))
          ++seen.at(static_cast<std::size_t>(index));
      EXPECT_THAT(seen, testing::Each(1));
    }
}

TEST(EachSampleOnce, RefusesWhatCannotBe) {
  EXPECT_THROW(each_sample_once(9, 2, 2), InvalidArgument);
  EXPECT_THROW(each_sample_once(9, 0, 0), InvalidArgument);
}

TEST(DataPartitioner, DividesAsPytorchsTutorialDoes) {
  const DataPartitioner parts(10);
  ASSERT_EQ(parts.size(), 3u);
  EXPECT_THAT(parts.use(0), ElementsAre(2, 8, 3, 5, 6, 4, 9));
  EXPECT_THAT(parts.use(1), ElementsAre(0, 1));
  EXPECT_THAT(parts.use(2), ElementsAre(7));
}

TEST(DataPartitioner, LeavesOutWhatTheFractionsLeaveOver) {
  const DataPartitioner parts(10, {.sizes = {1.0 / 3, 1.0 / 3, 1.0 / 3}});
  for (std::size_t part = 0; part < 3; ++part)
    EXPECT_EQ(parts.use(part).size(), 3u);
}

TEST(DataPartitioner, AcceptsFractionsThatComeToOneButForRounding) {
  const std::vector<double> sizes = {0.2, 0.4, 0.3, 0.1};
  ASSERT_GT(sizes[0] + sizes[1] + sizes[2] + sizes[3], 1.0);
  EXPECT_EQ(DataPartitioner(1000, {.sizes = sizes}).use(3).size(), 100u);
}

TEST(DataPartitioner, RefusesWhatCannotBe) {
  EXPECT_THROW(DataPartitioner(10, {.sizes = {0.5, 0.6}}), InvalidArgument);
  EXPECT_THROW(DataPartitioner(10, {.sizes = {-0.1}}), InvalidArgument);
  EXPECT_THROW(DataPartitioner(10, {.sizes = {std::nan("")}}), InvalidArgument);
  EXPECT_THROW(DataPartitioner(-1), InvalidArgument);
  EXPECT_THROW(DataPartitioner(10).use(3), InvalidArgument);
}

}  // namespace
}  // namespace lockstep
