#include "src/comm/memory/heap.h"

#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <functional>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "src/base/testing/address_space.h"

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

// A peer's mapping, separate from the heap's own.
class PeerMapping {
 public:
  PeerMapping(const Heap& heap, std::size_t bytes)
      : bytes_(bytes),
        data_(::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED,
                     heap.descriptor().get(), 0)) {
    EXPECT_NE(data_, MAP_FAILED);
  }
  ~PeerMapping() { ::munmap(data_, bytes_); }
  PeerMapping(const PeerMapping&) = delete;
  PeerMapping& operator=(const PeerMapping&) = delete;

  std::byte& operator[](std::size_t i) const {
    return static_cast<std::byte*>(data_)[i];
  }

 private:
  std::size_t bytes_;
  void* data_;
};

constexpr std::size_t kPage = 4096;

TEST(Heap, KeepsPeersFromWhatIsDetachedAndFromNothingElse) {
  const auto heap = Heap::create({.bytes = 1 << 20});
  const auto block = heap->allocate(8 * kPage);
  std::fill_n(block.get(), 8 * kPage, std::byte{1});
  const PeerMapping theirs(*heap, 1 << 20);
  theirs[2 * kPage] = std::byte{2};
  EXPECT_EQ(block.get()[2 * kPage], std::byte{2});
  // Parts of four pages.
  heap->detach(block.get() + 2 * kPage + 100, 2 * kPage + kPage / 2);
  for (std::size_t i = 0; i < 8 * kPage; ++i) theirs[i] = std::byte{3};
  EXPECT_EQ(block.get()[2 * kPage], std::byte{2});
  EXPECT_EQ(block.get()[5 * kPage - 1], std::byte{1});
  block.get()[2 * kPage] = std::byte{4};
  EXPECT_EQ(theirs[2 * kPage], std::byte{3});
  EXPECT_EQ(block.get()[2 * kPage - 1], std::byte{3});
  EXPECT_EQ(block.get()[5 * kPage], std::byte{3});
}

TEST(Heap, TellsWherePeersReachMemory) {
  const auto heap = Heap::create({.bytes = 1 << 20});
  const auto block = heap->allocate(200 * kPage);
  const std::byte* const data = block.get();
  EXPECT_FALSE(heap->has_private_pages());
  heap->detach(data + 100 * kPage, 3 * kPage);
  heap->detach(data + 101 * kPage, 4 * kPage);
  EXPECT_TRUE(heap->has_private_pages());
  EXPECT_EQ(heap->shared_offset_of(data, 100 * kPage), 0u);
  EXPECT_EQ(heap->shared_offset_of(data + 105 * kPage, 95 * kPage),
            105 * kPage);
  EXPECT_FALSE(heap->shared_offset_of(data, 100 * kPage + 1));
  EXPECT_FALSE(heap->shared_offset_of(data + 104 * kPage, 10));
  EXPECT_TRUE(heap->offset_of(data + 104 * kPage, 10));
}

// Issue 19: a peer that was stopped while reading continued in memory that had
// been given back to the kernel, and read zeros.
TEST(Heap, LeavesPeersWhatTheyReadWhenADetachedBlockIsGivenBack) {
  const auto heap = Heap::create({.bytes = 1 << 20, .kept_bytes = 0});
  std::byte* const before = heap->take(4 * kPage);
  std::byte* const block = heap->take(4 * kPage);
  std::byte* const after = heap->take(4 * kPage);
  std::fill_n(block, 4 * kPage, std::byte{1});
  heap->detach(block, 4 * kPage);
  std::fill_n(block, 4 * kPage, std::byte{2});
  heap->give_back(block);
  heap->give_back(before);
  heap->give_back(after);
  const PeerMapping theirs(*heap, 1 << 20);
  for (std::size_t i = 0; i < 4 * kPage; ++i)
    ASSERT_EQ(theirs[4 * kPage + i], std::byte{1}) << i;
  while (std::byte* const next = heap->take(4 * kPage)) EXPECT_NE(next, block);
}

// The bytes that the kernel has allocated for this heap's segment.
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

TEST(Heap, GivesThePrivateMemoryOfADetachedBlockBack) {
  const auto heap = Heap::create({.bytes = 1 << 22});
  std::byte* const block = heap->take(1 << 20);
  std::fill_n(block, 1 << 20, std::byte{1});
  heap->detach(block, 1 << 19);
  std::fill_n(block, 1 << 20, std::byte{2});
  EXPECT_GE(backed_bytes(*heap), std::size_t{1} << 20);
  heap->give_back(block);
  EXPECT_EQ(block[1 << 18], std::byte{1});  // the segment's again
  EXPECT_LE(backed_bytes(*heap), std::size_t{1} << 19);
}

// The flags that the kernel has for the mapping that holds `address`.
std::string flags_of_mapping(const std::byte* address) {
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  std::ifstream maps("/proc/self/smaps");
  bool here = false;
  for (std::string line; std::getline(maps, line);) {
    std::uintptr_t begin = 0, end = 0;
    char dash = 0;
    if (std::istringstream(line) >> std::hex >> begin >> dash >> end &&
        dash == '-')
      here = begin <= at && at < end;
    if (here && line.starts_with("VmFlags:")) return line + " ";
  }
  return "";
}

// Otherwise a core dump hides a death for seconds.
TEST(Heap, IsLeftOutOfCoreDumps) {
  const auto heap = Heap::create({.bytes = 1 << 22});
  const auto block = heap->allocate(4 * kPage);
  heap->detach(block.get() + kPage, kPage);
  for (std::size_t page = 0; page < 4; ++page)
    EXPECT_NE(flags_of_mapping(block.get() + page * kPage).find(" dd "),
              std::string::npos)
        << "page " << page;
}

TEST(Heap, IsBackedWhenABlockIsTakenWhereTheKernelCountsItsPromises) {
  constexpr std::size_t kMiB = std::size_t{1} << 20;
  const auto heap = Heap::create(
      {.bytes = 64 * kMiB, .backing = HeapOptions::Backing::kOnTake});
  std::byte* const block = heap->take(8 * kMiB);
  EXPECT_GE(backed_bytes(*heap), 8 * kMiB);
  heap->give_back(block);
}

// Runs `body` in a forked child; whether it returned true.
bool holds_in_child(const std::function<bool()>& body) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(body() ? 0 : 1);
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

// A system call whose fourth argument compares to a value in a given way.
struct Refused {
  std::uint32_t call;
  std::uint16_t comparison;  // BPF_JGT, BPF_JEQ
  std::uint32_t value;
  int error;
};

// From now on the kernel refuses such calls of this process.
bool refuse(const Refused& refused) {
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, refused.call, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args[3])),
      BPF_JUMP(BPF_JMP | refused.comparison | BPF_K, refused.value, 0, 1),
      BPF_STMT(BPF_RET | BPF_K,
               SECCOMP_RET_ERRNO | static_cast<std::uint32_t>(refused.error)),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{std::size(filter), filter};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

// Issue 19: with vm.overcommit_memory=2 it used to be SIGBUS.
TEST(Heap, IsFullWhereTheKernelRefusesMemory) {
  constexpr std::size_t kMiB = std::size_t{1} << 20;
  EXPECT_TRUE(holds_in_child([&] {
    const auto heap = Heap::create(
        {.bytes = 64 * kMiB, .backing = HeapOptions::Backing::kOnTake});
    if (!refuse({SYS_fallocate, BPF_JGT, 16 << 20, ENOSPC})) return false;
    std::byte* const first = heap->take(8 * kMiB);
    if (first == nullptr || heap->take(32 * kMiB) != nullptr) return false;
    std::byte* const second = heap->take(kMiB);
    if (second == nullptr) return false;
    std::fill_n(second, kMiB, std::byte{1});
    heap->give_back(first);
    heap->give_back(second);
    return heap->bytes_in_use() == 0;
  }));
}

// Issue 19: only the log used to say that peers could still write.
TEST(Heap, ThrowsWhereTheKernelRefusesPrivateMemory) {
  EXPECT_TRUE(holds_in_child([&] {
    const auto heap = Heap::create({.bytes = 1 << 20});
    const std::byte* const block = heap->take(4 * kPage);
    if (!refuse({SYS_mmap, BPF_JEQ, MAP_PRIVATE | MAP_NORESERVE | MAP_FIXED,
                 ENOMEM}))
      return false;
    try {
      heap->detach(block, 4 * kPage);
      return false;
    } catch (const SystemError& error) {
      return error.error_number() == ENOMEM &&
             !heap->shared_offset_of(block, 1);
    }
  }));
}

bool limit(__rlimit_resource resource, rlim_t most) {
  const rlimit limits{most, most};
  return ::setrlimit(resource, &limits) == 0;
}

// The error with which the kernel refuses a heap of `bytes` bytes; 0 if it does
// not.
int refusal_of_heap(std::size_t bytes) {
  try {
    Heap::create({.bytes = bytes});
    return 0;
  } catch (const SystemError& error) {
    return error.error_number();
  }
}

// The kernel's own way of refusing is SIGXFSZ, which ends a program.
TEST(Heap, IsNotMadeWhereALimitAdmitsNone) {
  constexpr std::size_t kBytes = std::size_t{1} << 36;
  EXPECT_TRUE(holds_in_child([&] {
    return limit(RLIMIT_FSIZE, kBytes - 1) &&
           refusal_of_heap(kBytes) == EFBIG &&
           process_heap({.bytes = kBytes}) == nullptr &&
           refusal_of_heap(kBytes / 2) == 0;
  }));
  EXPECT_TRUE(holds_in_child([&] {
    return limit_address_space(kBytes / 2) &&
           refusal_of_heap(kBytes) == ENOMEM &&
           process_heap({.bytes = kBytes}) == nullptr &&
           refusal_of_heap(kBytes / 4) == 0;
  }));
}

// A program may lower its limits at any time. The remaining space is for malloc
// and a sanitizer, and smaller than the detached range.
TEST(Heap, WorksOnBelowALimitThatComesLater) {
  constexpr std::size_t kBytes = std::size_t{1} << 27;
  for (const auto backing :
       {HeapOptions::Backing::kOnTouch, HeapOptions::Backing::kOnTake})
    EXPECT_TRUE(holds_in_child([&] {
      const auto heap = Heap::create({.bytes = kBytes, .backing = backing});
      if (!limit(RLIMIT_FSIZE, 0) || !limit_address_space(kBytes / 8))
        return false;
      std::byte* const block = heap->take(kBytes / 2);
      if (block == nullptr) return false;
      std::fill_n(block, kBytes / 2, std::byte{1});
      heap->detach(block, kBytes / 4);
      std::fill_n(block, kBytes / 2, std::byte{2});
      heap->give_back(block);
      return heap->bytes_in_use() == 0;
    }));
}

TEST(Heap, StaysWithinTheLimitOfItsCgroup) {
  const HeapOptions asked{.bytes = 1000, .kept_bytes = 500};
  EXPECT_EQ(asked.within(std::nullopt).bytes, 1000u);
  EXPECT_EQ(asked.within(4000).kept_bytes, 500u);
  EXPECT_EQ(asked.within(800).bytes, 800u);
  EXPECT_EQ(asked.within(800).kept_bytes, 200u);
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

TEST(Heap, IsACopyInAForkedChildWhereItWasDetachedToo) {
  const auto heap = Heap::create({.bytes = 1 << 20});
  std::byte* const block = heap->take(3 * kPage);
  std::fill_n(block, 3 * kPage, std::byte{1});
  heap->detach(block + kPage, kPage);
  std::fill_n(block, 3 * kPage, std::byte{2});
  EXPECT_TRUE(holds_in_child([&] {
    const bool has_a_copy =
        std::count(block, block + 3 * kPage, std::byte{2}) == 3 * kPage;
    std::fill_n(block, 3 * kPage, std::byte{3});
    return has_a_copy;
  }));
  EXPECT_EQ(std::count(block, block + 3 * kPage, std::byte{2}), 3 * kPage);
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
