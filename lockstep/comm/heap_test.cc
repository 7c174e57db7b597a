#include "lockstep/comm/heap.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <random>
#include <thread>
#include <utility>
#include <vector>

namespace lockstep {
namespace {

TEST(Heap, GivesZeroedAlignedBlocksAndTakesThemBack) {
  const auto heap = Heap::create({.bytes = 1 << 20});
  auto first = heap->allocate(1000);
  const auto second = heap->allocate(1);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(second.get()) % Heap::kAlignment,
            0u);
  EXPECT_TRUE(std::all_of(first.get(), first.get() + 1000,
                          [](std::byte b) { return b == std::byte{}; }));
  std::fill_n(first.get(), 1000, std::byte{7});
  const std::byte* address = first.get();
  first.reset();
  first = heap->allocate(1024);
  EXPECT_EQ(first.get(), address);
  EXPECT_EQ(first.get()[5], std::byte{});
}

TEST(Heap, JoinsFreedNeighbours) {
  const auto heap = Heap::create({.bytes = 1 << 20});
  std::vector<std::shared_ptr<std::byte>> blocks;
  while (auto block = heap->allocate(1 << 16)) blocks.push_back(block);
  EXPECT_EQ(blocks.size(), 16u);
  for (const std::size_t i : {3, 5, 4}) blocks[i].reset();
  EXPECT_NE(heap->allocate(3 << 16), nullptr);
  EXPECT_EQ(heap->allocate((3 << 16) + 1), nullptr);
}

TEST(Heap, HasNoRoomForMoreThanCanBeAddressed) {
  const auto heap = Heap::create({.bytes = 1 << 20});
  for (const std::size_t beyond : {1, 4, 63, 64, 65})
    EXPECT_EQ(heap->allocate(std::size_t{0} - beyond), nullptr) << beyond;
}

TEST(Heap, KnowsWhatLiesWithin) {
  const auto heap = Heap::create({.bytes = 1 << 20});
  const auto block = heap->allocate(100);
  EXPECT_EQ(heap->offset_of(block.get(), 1 << 20), 0u);
  EXPECT_FALSE(heap->offset_of(block.get(), (1 << 20) + 1).has_value());
  EXPECT_FALSE(heap->offset_of(&heap, 1).has_value());
}

TEST(Heap, IsOutOfReachOfPeersOnceDetached) {
  const auto heap = Heap::create({.bytes = 1 << 20});
  const auto block = heap->allocate(3 << 12);
  std::fill_n(block.get(), 3 << 12, std::byte{1});
  // A peer's mapping: not ours, which the process would share.
  void* peer = ::mmap(nullptr, 1 << 20, PROT_READ | PROT_WRITE, MAP_SHARED,
                      heap->descriptor().get(), 0);
  ASSERT_NE(peer, MAP_FAILED);
  auto* theirs = static_cast<std::byte*>(peer);
  theirs[5] = std::byte{2};
  EXPECT_EQ(block.get()[5], std::byte{2});
  heap->detach();
  std::fill_n(theirs, 3 << 12, std::byte{3});
  EXPECT_EQ(block.get()[5], std::byte{2});
  EXPECT_EQ(block.get()[(3 << 12) - 1], std::byte{1});
  block.get()[6] = std::byte{4};
  EXPECT_EQ(theirs[6], std::byte{3});
  ::munmap(peer, 1 << 20);
}

// What the kernel has given this heap's segment.
std::size_t backed_bytes(const Heap& heap) {
  struct stat info {};
  EXPECT_EQ(::fstat(heap.descriptor().get(), &info), 0);
  return static_cast<std::size_t>(info.st_blocks) * 512;
}

TEST(Heap, GivesMemoryBackToTheKernelBeyondItsLimit) {
  constexpr std::size_t kMiB = std::size_t{1} << 20;
  const auto heap = Heap::create({.bytes = 64 * kMiB, .kept_bytes = 4 * kMiB});
  std::vector<std::byte*> blocks;
  for (int i = 0; i < 8; ++i) {
    blocks.push_back(heap->take(kMiB));
    std::fill_n(blocks.back(), kMiB, std::byte{1});
  }
  EXPECT_GE(backed_bytes(*heap), 8 * kMiB);
  std::byte* const held = heap->take(100);
  std::fill_n(held, 100, std::byte{2});
  for (const std::byte* block : blocks) heap->give_back(block);
  EXPECT_LE(heap->bytes_kept(), 4 * kMiB);
  EXPECT_LE(backed_bytes(*heap), heap->bytes_kept() + kMiB);
  EXPECT_EQ(held[99], std::byte{2});
  heap->give_back(held);
}

TEST(Heap, GivesADetachedHeapsMemoryBackAsWell) {
  const auto heap = Heap::create({.bytes = 1 << 22});
  std::byte* const block = heap->take(1 << 20);
  std::fill_n(block, 1 << 20, std::byte{1});
  heap->detach();
  heap->give_back(block);
  EXPECT_EQ(block[1 << 19], std::byte{});
}

// Runs `body` in a forked child; whether it returned true.
bool holds_in_child(const std::function<bool()>& body) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(body() ? 0 : 1);
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

TEST(Heap, IsACopyInAForkedChildThatNeitherTakesNorGivesBack) {
  const auto heap = Heap::create({.bytes = 1 << 20});
  std::byte* const block = heap->take(100);
  block[0] = std::byte{1};
  EXPECT_TRUE(holds_in_child([&] {
    const bool has_a_copy = block[0] == std::byte{1};
    block[0] = std::byte{2};
    heap->give_back(block);
    return has_a_copy && heap->take(100) == nullptr && !heap->shareable();
  }));
  EXPECT_EQ(block[0], std::byte{1});
  EXPECT_NE(heap->take(100), block);
  EXPECT_TRUE(heap->shareable());
}

TEST(Heap, GivesBlocksToManyThreadsAtOnce) {
  const auto heap = Heap::create({.bytes = 1 << 26, .kept_bytes = 1 << 18});
  std::vector<std::jthread> threads;
  std::atomic<int> damaged{0};
  for (int id = 1; id <= 4; ++id)
    threads.emplace_back([&, id] {
      std::mt19937 random(static_cast<unsigned>(id));
      std::vector<std::pair<std::byte*, std::size_t>> taken;
      for (int i = 0; i < 2000; ++i) {
        const std::size_t bytes = 1 + random() % 50'000;
        std::byte* const block = heap->take(bytes);
        std::fill_n(block, bytes, static_cast<std::byte>(id));
        taken.emplace_back(block, bytes);
        if (taken.size() < 8) continue;
        const auto [oldest, size] = taken[random() % taken.size()];
        std::erase(taken, std::pair{oldest, size});
        damaged +=
            std::count(oldest, oldest + size, static_cast<std::byte>(id)) !=
            static_cast<std::ptrdiff_t>(size);
        heap->give_back(oldest);
      }
      for (const auto& block : taken) heap->give_back(block.first);
    });
  threads.clear();
  EXPECT_EQ(damaged, 0);
  EXPECT_EQ(heap->bytes_in_use(), 0u);
}

}  // namespace
}  // namespace lockstep
