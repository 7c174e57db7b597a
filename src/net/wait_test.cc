#include "src/net/wait.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <chrono>
#include <thread>

#include "src/base/testing/test_timeout.h"
#include "src/net/wake_up.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;

TEST(WaitFor, ComesBackWhenTheDescriptorIsReady) {
  WakeUp wake_up;
  std::thread other([&] { wake_up.signal(); });
  EXPECT_EQ(wait_for(wake_up.descriptor(), POLLIN, kTimeout),
            WaitResult::kReady);
  other.join();
  wake_up.reset();
  EXPECT_EQ(wait_for(wake_up.descriptor(), POLLIN, 0ms), WaitResult::kTimedOut);
}

TEST(WaitFor, ComesBackWhenItIsCancelled) {
  const WakeUp silent;
  Cancellation cancellation;
  std::thread other([&] { cancellation.cancel(); });
  EXPECT_EQ(wait_for(silent.descriptor(), POLLIN, kTimeout, &cancellation),
            WaitResult::kCancelled);
  other.join();
  EXPECT_EQ(wait_for(-1, POLLIN, Deadline::never(), &cancellation),
            WaitResult::kCancelled);
}

TEST(WaitFor, NeverComesBackBeforeItsDeadline) {
  const Deadline deadline(5ms);
  EXPECT_EQ(wait_for(-1, POLLIN, deadline), WaitResult::kTimedOut);
  EXPECT_TRUE(deadline.expired());
}

TEST(WaitFor, PrefersReadyToCancelledToTimedOut) {
  WakeUp wake_up;
  Cancellation cancellation;
  cancellation.cancel();
  EXPECT_EQ(wait_for(wake_up.descriptor(), POLLIN, -1s, &cancellation),
            WaitResult::kCancelled);
  wake_up.signal();
  EXPECT_EQ(wait_for(wake_up.descriptor(), POLLIN, -1s, &cancellation),
            WaitResult::kReady);
}

TEST(Backoff, WaitsLongerEachTimeUpToItsLimit) {
  Backoff backoff(1ms, 4ms);
  for (const auto pause : {1ms, 2ms, 4ms, 4ms}) {
    const Deadline earliest(pause);
    EXPECT_EQ(backoff.wait(kTimeout), WaitResult::kReady);
    EXPECT_TRUE(earliest.expired());
  }
}

TEST(Backoff, EndsWithTheDeadlineTheCancellationOrTheDescriptor) {
  Backoff backoff(std::chrono::hours(1), std::chrono::hours(1));
  EXPECT_EQ(backoff.wait(1ms), WaitResult::kTimedOut);
  Cancellation cancellation;
  WakeUp wake_up;
  wake_up.signal();
  EXPECT_EQ(backoff.wait(kTimeout, &cancellation, wake_up.descriptor()),
            WaitResult::kReady);
  cancellation.cancel();
  EXPECT_EQ(backoff.wait(kTimeout, &cancellation), WaitResult::kCancelled);
}

}  // namespace
}  // namespace lockstep
