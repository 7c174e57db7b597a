#include "lockstep/net/process_handle.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/net/wait.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;
using testing::ThrowsMessage;

// A process that does nothing until it is killed.
pid_t start_idle_child() {
  const pid_t pid = ::fork();
  while (pid == 0) ::pause();
  return pid;
}

TEST(ProcessHandle, OfThisProcessHasNotExited) {
  EXPECT_FALSE(has_exited(open_own_process()));
}

TEST(ProcessHandle, OfAChildTellsItsEndBeforeAnybodyHasWaitedForIt) {
  const pid_t pid = start_idle_child();
  ASSERT_GT(pid, 0);
  const FileDescriptor child = open_process(pid);
  EXPECT_FALSE(has_exited(child));
  ::kill(pid, SIGKILL);
  EXPECT_NE(wait_for(child.get(), POLLIN, Deadline(30s)),
            WaitResult::kTimedOut);
  EXPECT_TRUE(has_exited(child));
  ::waitpid(pid, nullptr, 0);
  EXPECT_TRUE(has_exited(child));
}

TEST(ProcessHandle, CannotBeHadOfAProcessThatIsGone) {
  const pid_t pid = start_idle_child();
  ASSERT_GT(pid, 0);
  ::kill(pid, SIGKILL);
  ::waitpid(pid, nullptr, 0);
  EXPECT_THAT([&] { open_process(pid); },
              ThrowsMessage<SystemError>(HasSubstr(std::to_string(pid))));
}

}  // namespace
}  // namespace lockstep
