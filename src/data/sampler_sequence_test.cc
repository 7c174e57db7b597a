#include "lockstep/data/sampler_sequence.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/data/data_partitioner.h"
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
  EXPECT_THAT(message_of(9, {.world_size = 0}), HasSubstr("over 0 ranks"));
  EXPECT_THAT(message_of(9, {.world_size = 2, .rank = 2}),
              HasSubstr("ranks go from 0 to 1"));
  EXPECT_THAT(message_of(9, {.world_size = 2, .rank = -1}),
              HasSubstr("rank -1"));
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
