// Tests that any number of groups and operations leave nothing behind.
//
// LOCKSTEP_TEST_GROUPS and LOCKSTEP_TEST_SMALL_OPERATIONS set their numbers: by
// default far fewer than the 10,000 and the million that it was tried with.
#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <barrier>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "lockstep/comm/groups.h"
#include "src/base/testing/own_resources.h"
#include "src/comm/testing/run_ranks.h"

namespace lockstep {
namespace {

constexpr int kRanks = 3;

int number_from(const char* variable, int otherwise) {
  const char* chosen = std::getenv(variable);
  return chosen == nullptr ? otherwise : std::atoi(chosen);
}

// This process's resources. Memory is the bytes that the allocator has handed
// out.
struct Footprint {
  std::size_t descriptors = 0;
  std::size_t threads = 0;
  std::size_t mappings = 0;
  std::size_t shared_mappings = 0;
  std::size_t bytes = 0;
};

Footprint footprint() {
  Footprint found{.descriptors = count_descriptors(),
                  .threads = count_threads(),
                  .bytes = mallinfo2().uordblks};
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line); ++found.mappings)
    if (line.find("memfd:") != std::string::npos) ++found.shared_mappings;
  return found;
}

using Round = std::function<void(ProcessGroup&)>;

struct BeforeAndAfter {
  Footprint before;
  Footprint after;
};

// The footprint after a first few rounds and after `rounds` more, each time
// while all ranks are idle.
BeforeAndAfter measure(const char* backend, int rounds, const Round& round) {
  BeforeAndAfter found;
  Footprint* next = &found.before;
  std::barrier all_rest(kRanks, [&]() noexcept {
    *next = footprint();
    next = &found.after;
  });
  run_ranks(backend, kRanks, [&](std::shared_ptr<ProcessGroup> group) {
    for (int i = 0; i < 1 + rounds / 10; ++i) round(*group);
    group->barrier().wait();
    all_rest.arrive_and_wait();
    for (int i = 0; i < rounds; ++i) round(*group);
    group->barrier().wait();
    all_rest.arrive_and_wait();
  });
  return found;
}

void expect_nothing_left(const BeforeAndAfter& found) {
  // A group starts its threads when it first needs them, which may be late for
  // the group that stays, and the allocator maps memory for new threads.
  constexpr std::size_t kLateThreads = 2 * kRanks;
  const auto& [before, after] = found;
  EXPECT_LE(after.descriptors, before.descriptors);
  EXPECT_LE(after.threads, before.threads + kLateThreads);
  EXPECT_LE(after.shared_mappings, before.shared_mappings);
  EXPECT_LE(after.mappings, before.mappings + 4 * kLateThreads);
}

// Sanitizers map and keep memory of their own.
constexpr bool is_sanitized() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return true;
#elif defined(__has_feature)
  return __has_feature(address_sanitizer) || __has_feature(thread_sanitizer);
#else
  return false;
#endif
}

class Leaks : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (is_sanitized()) GTEST_SKIP() << "sanitizers keep memory of their own";
  }

  // Between hosts the operations cost much more.
  int count(const char* variable, int otherwise) const {
    const bool on_wire = std::string(GetParam()) == "gloo";
    return number_from(variable, on_wire ? otherwise / 20 : otherwise);
  }
};

TEST_P(Leaks, GroupsLeaveNoDescriptorMappingOrThread) {
  const int groups = count("LOCKSTEP_TEST_GROUPS", 500);
  const std::vector<int> all{2, 0, 1};
  const auto found = measure(GetParam(), groups, [&](ProcessGroup& world) {
    const auto group = new_group(world, all);
    std::vector<float> data(10'000, 1);
    group->all_reduce(view(data), ReduceOp::kSum).wait();
    EXPECT_EQ(data.back(), kRanks);
  });
  expect_nothing_left(found);
  std::cout << groups << " groups on " << GetParam() << ": "
            << found.before.bytes << " bytes before, " << found.after.bytes
            << " after\n";
  // The recorder's 1,000 operations fill up.
  EXPECT_LT(found.after.bytes, found.before.bytes + 4 * 1024 * 1024);
}

TEST_P(Leaks, SmallOperationsLeaveNothing) {
  const int operations = count("LOCKSTEP_TEST_SMALL_OPERATIONS", 50'000);
  constexpr int kInRound = 5;
  const auto found =
      measure(GetParam(), operations / kInRound, [](ProcessGroup& group) {
        std::vector<float> one{1}, sent{2}, got{0};
        const int next = (group.rank() + 1) % kRanks;
        const Work works[] = {
            group.all_reduce(view(one), ReduceOp::kSum),
            group.irecv(view(got), (group.rank() + 2) % kRanks),
            group.isend(view(sent), next), group.broadcast(view(one), 0)};
        group.barrier().wait();
        for (const Work& work : works) work.wait();
      });
  expect_nothing_left(found);
  std::cout << operations << " operations on " << GetParam() << ": "
            << found.before.bytes << " bytes before, " << found.after.bytes
            << " after\n";
  // A leak of a byte per operation would show from a million on. The
  // allocator's thread caches count as used.
  EXPECT_LT(found.after.bytes, found.before.bytes + 512 * 1024);
}

INSTANTIATE_TEST_SUITE_P(Backends, Leaks, testing::Values("shm", "gloo"),
                         [](const auto& backend) {
                           return std::string(backend.param);
                         });

}  // namespace
}  // namespace lockstep
