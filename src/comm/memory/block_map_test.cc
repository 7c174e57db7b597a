#include "src/comm/memory/block_map.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>

namespace lockstep {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

TEST(BlockMap, HandsOutAgainWhatWasGivenBackLast) {
  BlockMap blocks(kMiB);
  const auto first = blocks.take(5000);
  const auto second = blocks.take(5000);
  blocks.give_back(*first);
  blocks.give_back(*second);
  EXPECT_EQ(blocks.take(5000), second);
  EXPECT_EQ(blocks.take(5000), first);
}

TEST(BlockMap, WastesAtMostAnEighth) {
  for (std::size_t bytes = 1; bytes < 100'000; bytes += 37) {
    const std::size_t size = BlockMap::class_size(bytes);
    EXPECT_GE(size, bytes);
    EXPECT_EQ(size % BlockMap::kUnit, 0u);
    EXPECT_LE(size, bytes + std::max(bytes / 8, BlockMap::kUnit)) << bytes;
  }
}

TEST(BlockMap, JoinsWhatIsKeptBeforeItTouchesMore) {
  BlockMap blocks(16 * kMiB);
  std::vector<std::size_t> offsets;
  for (int i = 0; i < 8; ++i) offsets.push_back(*blocks.take(kMiB / 8));
  for (const std::size_t offset : offsets) blocks.give_back(offset);
  EXPECT_EQ(blocks.take(kMiB), 0u);
  EXPECT_EQ(blocks.bytes_kept(), 0u);
}

TEST(BlockMap, DoesNotGrowWhenSizesChange) {
  BlockMap blocks(1024 * kMiB);
  std::size_t furthest = 0;
  for (std::size_t step = 0; step < 1000; ++step) {
    std::vector<std::size_t> taken;
    for (std::size_t i = 0; i < 8; ++i) {
      const std::size_t bytes = kMiB + (step * 7919 + i * 104'729) % kMiB;
      taken.push_back(*blocks.take(bytes));
      furthest = std::max(furthest, taken.back() + BlockMap::class_size(bytes));
    }
    for (const std::size_t offset : taken) blocks.give_back(offset);
  }
  EXPECT_LE(furthest, 8 * 2 * kMiB * 3 / 2);
}

TEST(BlockMap, HasRoomForOneBlockOfEverythingAfterAnyHistory) {
  BlockMap blocks(kMiB);
  blocks.give_back(*blocks.take(kMiB / 4));
  blocks.give_back(*blocks.take(kMiB / 2));
  blocks.release(0, [](std::size_t, std::size_t) {});
  blocks.give_back(*blocks.take(kMiB / 8));
  EXPECT_EQ(blocks.take(kMiB), 0u);
  EXPECT_FALSE(blocks.take(1));
}

TEST(BlockMap, RefusesMoreThanThereIs) {
  BlockMap blocks(kMiB);
  EXPECT_FALSE(blocks.take(kMiB + 1));
  for (const std::size_t beyond : {1, 63, 64, 65})
    EXPECT_FALSE(blocks.take(std::size_t{0} - beyond));
}

TEST(BlockMap, ReleasesTheLargestRangesFirstAndOnlyWhatMustGo) {
  BlockMap blocks(kMiB);
  const auto small = blocks.take(1 << 12);
  const auto used = blocks.take(64);
  const auto large = blocks.take(1 << 16);
  blocks.give_back(*small);
  blocks.give_back(*large);
  std::vector<std::size_t> forgotten;
  const auto forget = [&](std::size_t offset, std::size_t) {
    forgotten.push_back(offset);
  };
  blocks.release(1 << 12, forget);
  EXPECT_EQ(forgotten, std::vector{*large});
  EXPECT_EQ(blocks.bytes_kept(), std::size_t{1} << 12);
  EXPECT_EQ(blocks.bytes_used(), 64u);
  EXPECT_EQ(blocks.take(1 << 12), small);
  blocks.give_back(*used);
}

TEST(BlockMap, ReleasesNoMoreThanItMustOfARange) {
  BlockMap blocks(kMiB);
  std::vector<std::size_t> taken;
  for (int i = 0; i < 8; ++i) taken.push_back(*blocks.take(1 << 16));
  for (const std::size_t offset : taken) blocks.give_back(offset);
  blocks.release(4 << 16, [](std::size_t offset, std::size_t bytes) {
    EXPECT_EQ(offset, std::size_t{4} << 16);
    EXPECT_EQ(bytes, std::size_t{4} << 16);
  });
  EXPECT_EQ(blocks.bytes_kept(), std::size_t{4} << 16);
}

// Compares with the obvious version: blocks in use never overlap, and no byte
// is lost.
TEST(BlockMap, NeverHandsAByteOutTwice) {
  const std::uint64_t seed = 20261121;
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  constexpr std::size_t kBytes = 4 * kMiB;
  BlockMap blocks(kBytes);
  std::map<std::size_t, std::size_t> taken;
  for (int step = 0; step < 20'000; ++step) {
    if (random() % 2 == 0 || taken.empty()) {
      const std::size_t bytes = random() % (std::size_t{1} << random() % 20);
      const auto offset = blocks.take(bytes);
      if (!offset) continue;
      const std::size_t size = BlockMap::class_size(bytes);
      ASSERT_LE(*offset + size, kBytes);
      const auto next = taken.lower_bound(*offset);
      if (next != taken.end()) {
        ASSERT_LE(*offset + size, next->first);
      }
      if (next != taken.begin()) {
        ASSERT_LE(std::prev(next)->first + std::prev(next)->second, *offset);
      }
      taken.emplace(*offset, size);
    } else {
      auto victim = taken.begin();
      std::advance(victim, random() % taken.size());
      blocks.give_back(victim->first);
      taken.erase(victim);
    }
    if (step % 1000 == 0)
      blocks.release(kMiB, [&](std::size_t offset, std::size_t bytes) {
        const auto next = taken.lower_bound(offset);
        if (next != taken.end()) {
          ASSERT_LE(offset + bytes, next->first);
        }
      });
  }
  for (const auto& block : taken) blocks.give_back(block.first);
  EXPECT_EQ(blocks.bytes_used(), 0u);
  EXPECT_TRUE(blocks.take(kBytes));
}

}  // namespace
}  // namespace lockstep
