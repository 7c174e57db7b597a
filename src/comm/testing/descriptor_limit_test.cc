// Tests ranks that may open few or no files when they join. Deadlines are long:
// they only keep a failing test from hanging.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>

#include "src/base/testing/test_timeout.h"
#include "src/comm/testing/rank_processes.h"
#include "src/net/free_port.h"
#include "src/net/testing/scarce_descriptors.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using testing::AllOf;
using testing::HasSubstr;

constexpr int kEnough = 40;

// Two ranks join; `victim` may open `spare` more files. Returns whether it
// joined; otherwise it must have printed the reason.
bool joins(int victim, int spare, std::vector<std::string> environment) {
  environment.push_back("VICTIM=" + std::to_string(victim));
  environment.push_back("SPARE=" + std::to_string(spare));
  RankProcesses ranks(2, {LOCKSTEP_COMM_RANKS, "short_of_descriptors"},
                      environment);
  if (ranks.wait_for_end(victim, kTimeout) == 0) return true;
  EXPECT_THAT(ranks.output(victim), AllOf(HasSubstr("SystemError: "),
                                          HasSubstr("Too many open files\n"),
                                          HasSubstr("(ulimit -n)")))
      << "rank " << victim << " with " << spare << " files";
  return false;
}

// Tries each number of files, from 0 to enough.
void expect_clear_errors(int victim,
                         const std::vector<std::string>& environment) {
  int spare = 0;
  while (spare < kEnough && !joins(victim, spare, environment)) ++spare;
  EXPECT_GT(spare, 0);
  EXPECT_LT(spare, kEnough);
}

TEST(TooFewFiles, AreReportedByRanksThatJoinOnSharedMemory) {
  for (const int victim : {0, 1})
    expect_clear_errors(victim, {"LOCKSTEP_BACKEND=shm"});
}

TEST(TooFewFiles, AreReportedByRanksThatJoinOnGloo) {
  if (!std::filesystem::exists(LOCKSTEP_TEST_PLUGINS "/liblockstep_gloo.so"))
    GTEST_SKIP() << "the plug-in gloo was not built";
  for (const int victim : {0, 1})
    expect_clear_errors(victim, {"LOCKSTEP_BACKEND=gloo"});
}

TEST(TooFewFiles, AreReportedByTheRankThatServesTheStore) {
  const int port = find_free_port();
  expect_clear_errors(0,
                      {"INIT_METHOD=tcp://127.0.0.1:" + std::to_string(port)});
}

TEST(TooFewFiles, AreMoreOnceARankRaisesItsSoftLimit) {
  for (const int victim : {0, 1})
    EXPECT_TRUE(joins(victim, 0, {"LOCKSTEP_BACKEND=shm", "SOFT=1"}));
}

}  // namespace
}  // namespace lockstep
