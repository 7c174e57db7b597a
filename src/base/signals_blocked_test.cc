#include "src/base/signals_blocked.h"

#include <gtest/gtest.h>

#include <thread>

namespace lockstep {
namespace {

bool blocked_here(int signal) {
  sigset_t mask;
  ::pthread_sigmask(SIG_SETMASK, nullptr, &mask);
  return sigismember(&mask, signal) == 1;
}

TEST(SignalsBlocked, KeepsThemFromThreadsThatAreStartedMeanwhile) {
  ASSERT_FALSE(blocked_here(SIGTERM));
  bool in_thread = false;
  std::thread thread;
  {
    const SignalsBlocked blocked;
    thread = std::thread([&] { in_thread = blocked_here(SIGTERM); });
  }
  EXPECT_FALSE(blocked_here(SIGTERM));
  thread.join();
  EXPECT_TRUE(in_thread);
}

}  // namespace
}  // namespace lockstep
