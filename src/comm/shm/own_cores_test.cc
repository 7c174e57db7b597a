#include "src/comm/shm/own_cores.h"

#include <gtest/gtest.h>

#include <thread>

namespace lockstep {
namespace {

using Cores = std::vector<int>;

cpu_set_t set_of(const Cores& cores) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int core : cores) CPU_SET(static_cast<std::size_t>(core), &set);
  return set;
}

bool fit(const std::vector<Cores>& ranks) {
  std::vector<cpu_set_t> allowed;
  for (const Cores& cores : ranks) allowed.push_back(set_of(cores));
  return each_has_a_core(allowed);
}

// Issue 19, point 21: two ranks pinned to one core of a large machine.
TEST(Ranks, HaveACoreEachOnlyWhereTheyMayRunOnDifferentOnes) {
  EXPECT_FALSE(fit({{5}, {5}}));
  EXPECT_TRUE(fit({{5}, {6}}));
  EXPECT_TRUE(fit({{0, 1, 2, 3}, {0, 1, 2, 3}, {0, 1, 2, 3}}));
  EXPECT_FALSE(fit({{0, 1}, {0, 1}, {0, 1}}));
}

// Many cores for one rank are of no use to two others that share one.
TEST(Ranks, ShareACoreThoughOthersHaveMany) {
  EXPECT_FALSE(fit({{0}, {0}, {1, 2, 3, 4, 5, 6, 7}}));
  EXPECT_TRUE(fit({{0, 1}, {0}, {1, 2}}));
  EXPECT_FALSE(fit({{0, 1}, {0}, {1}}));
}

TEST(Ranks, MayRunWhereTheirThreadMay) {
  std::thread([] {
    const cpu_set_t before = cores_of_this_thread();
    std::size_t core = 0;
    while (!CPU_ISSET(core, &before)) ++core;
    const cpu_set_t one = set_of({static_cast<int>(core)});
    ASSERT_EQ(::sched_setaffinity(0, sizeof one, &one), 0);
    const cpu_set_t now = cores_of_this_thread();
    EXPECT_TRUE(CPU_EQUAL(&now, &one));
  }).join();
}

}  // namespace
}  // namespace lockstep
