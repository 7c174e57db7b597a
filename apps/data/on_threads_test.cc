#include "apps/data/on_threads.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <vector>

#include "src/base/testing/error_text.h"

namespace lockstep {
namespace {

using testing::Each;

TEST(OnThreads, DoesEachPieceOnce) {
  for (const int threads : {1, 2, 7}) {
    std::vector<std::atomic<int>> times(100);
    for_each_on_threads(std::ssize(times), threads, [&](std::int64_t i) {
      ++times[static_cast<std::size_t>(i)];
    });
    EXPECT_THAT(std::vector<int>(times.begin(), times.end()), Each(1))
        << threads << " threads";
  }
  for_each_on_threads(0, 4, [](std::int64_t) { FAIL(); });
}

TEST(OnThreads, EndsWithTheErrorOfAPieceAndLeavesTheRestOut) {
  std::atomic<int> done = 0;
  const auto fail = [&](std::int64_t i) {
    if (i == 10) throw InvalidArgument("the tenth");
    ++done;
  };
  for (const int threads : {1, 3}) {
    done = 0;
    EXPECT_EQ(
        error_text([&] { for_each_on_threads(1'000'000, threads, fail); }),
        "the tenth");
    EXPECT_LT(done, 1'000'000);
  }
}

}  // namespace
}  // namespace lockstep
