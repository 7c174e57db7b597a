#include "lockstep/net/parents_sockets.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <array>
#include <chrono>
#include <vector>

#include "lockstep/net/file_descriptor.h"
#include "lockstep/net/wait.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;

struct Pair {
  FileDescriptor ours, theirs;
};
Pair make_pair() {
  std::array<int, 2> ends{};
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()),
            0);
  return {FileDescriptor(ends[0]), FileDescriptor(ends[1])};
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
  Pair pair = make_pair();
  keep_from_children(pair.ours.get());
  FileDescriptor copy(::fcntl(pair.ours.get(), F_DUPFD_CLOEXEC, 0));
  const Child child;
  // The connection ends when the parent closes it, not when the child starts.
  EXPECT_EQ(wait_for(pair.theirs.get(), POLLIN, 0ms), WaitResult::kTimedOut);
  pair.ours.reset();
  copy.reset();
  EXPECT_EQ(wait_for(pair.theirs.get(), POLLIN, 1min), WaitResult::kReady);
}

TEST(SocketsOfAParent, LeaveTheirNumbersTakenInAChild) {
  const Pair pair = make_pair();
  keep_from_children(pair.ours.get());
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
    const Pair pair = make_pair();
    keep_from_children(pair.ours.get());
    number = pair.ours.get();
  }
  const Pair other = make_pair();
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

TEST(SocketsOfAParent, AreForgottenWhenManyHaveBeenClosed) {
  Pair kept = make_pair();
  keep_from_children(kept.ours.get());
  for (int turn = 0; turn < 2000; ++turn) {
    const Pair pair = make_pair();
    keep_from_children(pair.ours.get());
  }
  const Child child;
  kept.ours.reset();
  EXPECT_EQ(wait_for(kept.theirs.get(), POLLIN, 1min), WaitResult::kReady);
}

}  // namespace
}  // namespace lockstep
