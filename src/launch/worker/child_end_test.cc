#include "src/launch/worker/child_end.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <thread>

#include "src/net/testing/without_pidfd.h"
#include "src/net/wait.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;

void expect_end_to_be_told() {
  const pid_t pid = ::fork();
  while (pid == 0) ::pause();
  ASSERT_GT(pid, 0);
  const ChildEnd end(pid);
  pollfd item{end.descriptor(), POLLIN, 0};
  EXPECT_EQ(::poll(&item, 1, 0), 0) << "it has not ended";
  ::kill(pid, SIGKILL);
  EXPECT_NE(wait_for(end.descriptor(), POLLIN, Deadline(1min)),
            WaitResult::kTimedOut);
  int status = 0;
  EXPECT_EQ(::waitpid(pid, &status, 0), pid) << "it was left to be reaped";
  EXPECT_EQ(WTERMSIG(status), SIGKILL);
}

TEST(AChildsEnd, IsTold) { expect_end_to_be_told(); }

TEST(AChildsEnd, IsToldWithoutPidfds) {
  // The filter stays on the thread that installed it.
  std::thread([] {
    ASSERT_TRUE(refuse_pidfd_open(ENOSYS));
    expect_end_to_be_told();
  }).join();
}

}  // namespace
}  // namespace lockstep
