#include "src/net/process_handle.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <span>
#include <string>

#include "lockstep/base/error.h"
#include "src/net/testing/without_pidfd.h"
#include "src/net/unix_socket.h"
#include "src/net/wait.h"

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

// The same, but it ends with `code` on SIGUSR1.
pid_t start_idle_child_that_ends(int code) {
  static int exit_code = 0;
  exit_code = code;
  ::signal(SIGUSR1, [](int) { ::_exit(exit_code); });
  const pid_t pid = start_idle_child();
  ::signal(SIGUSR1, SIG_DFL);
  return pid;
}

TEST(ProcessHandle, OfThisProcessHasNotExited) {
  EXPECT_FALSE(has_exited(open_own_process()));
}

TEST(ProcessHandle, IsSharedByThoseWhoHoldOneOnTheSameProcess) {
  const auto first = shared_handle(open_own_process());
  EXPECT_EQ(shared_handle(open_own_process()), first);
  const pid_t pid = start_idle_child();
  ASSERT_GT(pid, 0);
  const auto child = shared_handle(open_process(pid));
  EXPECT_NE(child, first);
  EXPECT_EQ(shared_handle(open_process(pid)), child);
  FileDescriptor another = open_process(pid);
  ::kill(pid, SIGKILL);
  ::waitpid(pid, nullptr, 0);
  // Another process may have this number now.
  EXPECT_NE(shared_handle(std::move(another)), child);
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

TEST(ProcessHandle, TellsHowAProcessEnded) {
  const auto end_of = [](int code, int signal) {
    const pid_t pid = start_idle_child_that_ends(code);
    const FileDescriptor child = open_process(pid);
    EXPECT_FALSE(exit_status_of(child).has_value());
    ::kill(pid, signal);
    wait_for(child.get(), POLLIN, Deadline(30s));
    const auto unreaped = exit_status_of(child);
    ::waitpid(pid, nullptr, 0);
    // Older kernels lose the exit status with the process.
    if (const auto reaped = exit_status_of(child))
      EXPECT_EQ(describe(*reaped), describe(unreaped.value()));
    return describe(unreaped.value());
  };
  EXPECT_EQ(end_of(7, SIGUSR1), "exited with code 7");
  EXPECT_EQ(end_of(0, SIGUSR1), "exited with code 0");
  EXPECT_EQ(end_of(0, SIGKILL), "was killed by signal 9 (SIGKILL)");
}

// A process without pidfds that passes its handle, forks a child that keeps
// running, and ends by a signal.
[[noreturn]] void pass_handle_and_leave_a_child(UnixConnection& to,
                                                unsigned error_number) {
  if (!refuse_pidfd_open(error_number)) ::_exit(3);
  const FileDescriptor self = open_own_process();
  const pid_t child = start_idle_child();
  const std::array descriptors{self.get()};
  to.send(std::as_bytes(std::span(&child, 1)), descriptors, 30s);
  while (true) ::pause();
}

TEST(ProcessHandle, TellsTheEndWithoutPidfdsThoughAForkedChildLivesOn) {
  for (const unsigned error_number : {ENOSYS, EPERM}) {
    UnixListener listener;
    UnixConnection near = connect_unix(listener.name(), 30s);
    UnixConnection far(listener.accept());
    const pid_t pid = ::fork();
    if (pid == 0) pass_handle_and_leave_a_child(far, error_number);
    ASSERT_GT(pid, 0);
    const auto message = near.receive(30s);
    ASSERT_EQ(message.descriptors.size(), 1u);
    const FileDescriptor& process = message.descriptors[0];
    EXPECT_FALSE(has_exited(process));
    ::kill(pid, SIGKILL);
    EXPECT_NE(wait_for(process.get(), POLLIN, Deadline(30s)),
              WaitResult::kTimedOut);
    EXPECT_TRUE(has_exited(process));
    ::waitpid(pid, nullptr, 0);
    pid_t child = 0;
    std::memcpy(&child, message.bytes.data(), sizeof child);
    EXPECT_EQ(::kill(child, SIGKILL), 0) << "it lived on";
  }
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
