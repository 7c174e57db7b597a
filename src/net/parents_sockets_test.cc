#include "src/net/parents_sockets.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "src/net/file_descriptor.h"
#include "src/net/socket.h"
#include "src/net/socket_address.h"
#include "src/net/wait.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;

struct SocketPair {
  FileDescriptor ours, theirs;
};
// Children do not keep `ours` if it is `kept`.
SocketPair make_socket_pair(bool kept = true) {
  std::array<int, 2> ends{};
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()),
            0);
  const auto ours = [&] { return FileDescriptor(ends[0]); };
  return {kept ? keep_from_children(ours) : ours(), FileDescriptor(ends[1])};
}

// The descriptors below 1,000 that are TCP sockets. Makes system calls only.
int open_tcp_sockets() {
  int count = 0;
  for (int number = 0; number < 1000; ++number) {
    int domain = 0;
    socklen_t length = sizeof domain;
    if (::getsockopt(number, SOL_SOCKET, SO_DOMAIN, &domain, &length) == 0 &&
        (domain == AF_INET || domain == AF_INET6))
      ++count;
  }
  return count;
}

// A child of this process that lives until it is killed.
class Child {
 public:
  Child() : pid_(::fork()) {
    while (pid_ == 0) ::pause();
  }
  ~Child() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

 private:
  const pid_t pid_;
};

// Issue 19, point 15.
TEST(SocketsOfAParent, EndWithItThoughAChildLives) {
  SocketPair pair = make_socket_pair();
  FileDescriptor copy(::fcntl(pair.ours.get(), F_DUPFD_CLOEXEC, 0));
  const Child child;
  // The connection ends when the parent closes it, not when the child starts.
  EXPECT_EQ(wait_for(pair.theirs.get(), POLLIN, 0ms), WaitResult::kTimedOut);
  pair.ours.reset();
  copy.reset();
  EXPECT_EQ(wait_for(pair.theirs.get(), POLLIN, 1min), WaitResult::kReady);
}

TEST(SocketsOfAParent, LeaveTheirNumbersTakenInAChild) {
  const SocketPair pair = make_socket_pair();
  const pid_t child = ::fork();
  if (child == 0) {
    const std::array<char, 1> byte{};
    const bool is_taken = ::fcntl(pair.ours.get(), F_GETFD) >= 0;
    const bool is_lost =
        ::send(pair.ours.get(), byte.data(), byte.size(), 0) < 0;
    ::_exit(is_taken && is_lost ? 0 : 1);
  }
  int status = -1;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(SocketsOfAParent, AreNotThoseThatHaveTheirNumbersLater) {
  int number = -1;
  {
    const SocketPair pair = make_socket_pair();
    number = pair.ours.get();
  }
  const SocketPair other = make_socket_pair(/*kept=*/false);
  ASSERT_EQ(other.ours.get(), number);
  const pid_t child = ::fork();
  if (child == 0) {
    const std::array<char, 1> byte{};
    ::_exit(::send(number, byte.data(), byte.size(), 0) == 1 ? 0 : 1);
  }
  int status = -1;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

// A fork() in another thread comes at any moment of listening, connecting and
// accepting.
TEST(SocketsOfAParent, EndWithItThoughAChildIsForkedWhileTheyOpen) {
  std::atomic<bool> done{false};
  std::thread opens([&] {
    while (!done) {
      const FileDescriptor listener = listen_at("127.0.0.1", 0);
      const FileDescriptor called =
          connect_to("127.0.0.1", local_address(listener.get()).port(), 1min);
      accept_from(listener.get());
    }
  });
  int kept = 0;
  for (int turn = 0; turn < 300 && kept == 0; ++turn) {
    const pid_t child = ::fork();
    if (child == 0) ::_exit(std::min(open_tcp_sockets(), 255));
    int status = -1;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    kept = status;
  }
  done = true;
  opens.join();
  EXPECT_EQ(kept, 0);
}

TEST(SocketsOfAParent, AreForgottenWhenManyHaveBeenClosed) {
  SocketPair kept = make_socket_pair();
  for (int turn = 0; turn < 2000; ++turn) {
    const SocketPair pair = make_socket_pair();
  }
  const Child child;
  kept.ours.reset();
  EXPECT_EQ(wait_for(kept.theirs.get(), POLLIN, 1min), WaitResult::kReady);
}

}  // namespace
}  // namespace lockstep
