#include "src/net/unix_socket.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <functional>
#include <vector>

#include "lockstep/base/error.h"
#include "src/base/testing/test_timeout.h"
#include "src/net/testing/another_user.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;

constexpr auto kImpatience = 5ms;

// The two ends of a connection.
struct Pair {
  Pair() {
    UnixListener listener;
    near = connect_unix(listener.name(), kTimeout);
    far = UnixConnection(listener.accept());
  }
  UnixConnection near;
  UnixConnection far;
};

constexpr std::array kHello{std::byte{1}, std::byte{2}};

bool times_out(const std::function<void()>& action) {
  try {
    action();
  } catch (const Timeout&) {
    return true;
  }
  return false;
}

TEST(AUnixConnection, KnowsTheUserAtEachEnd) {
  LOCKSTEP_NEEDS_ROOT();
  const Pair own;
  EXPECT_EQ(own.near.peer_user(), ::geteuid());
  EXPECT_TRUE(own.near.is_of_own_user());
  EXPECT_TRUE(own.far.is_of_own_user());
  UnixListener listener;
  const UnixConnection near = [&] {
    const AnotherUser user;
    return connect_unix(listener.name(), kTimeout);
  }();
  const UnixConnection far(listener.accept());
  EXPECT_TRUE(near.is_of_own_user()) << "the listener is root's";
  EXPECT_FALSE(far.is_of_own_user()) << "user " << far.peer_user();
}

TEST(AUnixConnection, KeepsTheBordersOfMessagesAndPassesDescriptors) {
  Pair pair;
  const std::array descriptors{STDIN_FILENO, STDOUT_FILENO};
  pair.near.send(kHello, descriptors, kTimeout);
  pair.near.send(std::span(kHello).first(1), {}, kTimeout);
  EXPECT_EQ(pair.far.receive(kTimeout).descriptors.size(), 2u);
  EXPECT_EQ(pair.far.receive(kTimeout).bytes.size(), 1u);
}

TEST(AUnixConnection, SaysWhenThePeerIsGone) {
  Pair pair;
  pair.far = UnixConnection();
  EXPECT_THROW(pair.near.send(kHello, {}, kTimeout), NetworkError);
  EXPECT_THROW(pair.near.receive(kTimeout), NetworkError);
}

// The kernel may find no message and then the end, although the peer sent and
// then closed, when both happen between its two checks. To the receiver an
// empty message looks the same.
TEST(AUnixConnection, IsNotOverWhileThereIsAMessage) {
  Pair pair;
  ASSERT_EQ(::send(pair.far.descriptor(), "", 0, MSG_NOSIGNAL), 0);
  pair.far.send(kHello, std::array{STDIN_FILENO}, kTimeout);
  pair.far = UnixConnection();
  const auto last = pair.near.receive(kTimeout);
  EXPECT_EQ(last.bytes.size(), kHello.size());
  EXPECT_EQ(last.descriptors.size(), 1u);
  EXPECT_THROW(pair.near.receive(kTimeout), NetworkError);
}

TEST(AUnixConnection, IsNotOverBecauseThePeerLeftSomethingUnread) {
  Pair pair;
  pair.near.send(kHello, {}, kTimeout);
  pair.far.send(kHello, {}, kTimeout);
  pair.far = UnixConnection();
  EXPECT_EQ(pair.near.receive(kTimeout).bytes.size(), kHello.size());
  EXPECT_THROW(pair.near.receive(kTimeout), NetworkError);
}

TEST(AUnixConnection, EndsForWhoReceivesAnEmptyMessageAndNoMore) {
  Pair pair;
  ASSERT_EQ(::send(pair.far.descriptor(), "", 0, MSG_NOSIGNAL), 0);
  EXPECT_THROW(pair.near.receive(kTimeout), NetworkError);
}

TEST(ConnectUnix, WaitsWhileTooManyOthersWaitToBeAccepted) {
  UnixListener listener;
  std::vector<UnixConnection> waiting;
  const auto connect = [&](Deadline deadline) {
    waiting.push_back(connect_unix(listener.name(), deadline));
  };
  const auto connects = [&] {
    return !times_out([&] { connect(kImpatience); });
  };
  while (waiting.size() < 10'000 && connects()) continue;
  ASSERT_LT(waiting.size(), 10'000u);
  ASSERT_TRUE(listener.accept());
  connect(kTimeout);
}

TEST(ConnectUnix, SaysWhenNobodyListens) {
  const std::string name = UnixListener().name();
  EXPECT_THROW(connect_unix(name, kTimeout), NetworkError);
}

// The view of a user without privileges; the exit code tells what failed.
int send_more_descriptors_than_may_be_on_their_way() {
  constexpr rlim_t kLimit = 64;
  constexpr uid_t kNobody = 65534;
  const rlimit limit{kLimit, kLimit};
  Pair pair;
  if (::setresuid(kNobody, kNobody, kNobody) != 0 ||
      ::setrlimit(RLIMIT_NOFILE, &limit) != 0)
    return 1;
  const std::array descriptors{STDIN_FILENO};
  rlim_t sent = 0;
  const auto send = [&](Deadline deadline) {
    pair.near.send(kHello, descriptors, deadline);
    ++sent;
  };
  // The user may have other descriptors in flight too.
  bool refused = false;
  while (!refused && sent < 4 * kLimit)
    refused = times_out([&] { send(kImpatience); });
  if (!refused) return 2;
  while (sent-- > 0) pair.far.receive(kTimeout);
  pair.near.send(kHello, descriptors, kTimeout);
  return pair.far.receive(kTimeout).descriptors.size() == 1 ? 0 : 3;
}

TEST(AUnixConnection, WaitsWhileTheUserHasTooManyDescriptorsOnTheirWay) {
  if (::geteuid() != 0)
    GTEST_SKIP() << "only root can become a user with a limit of its own";
  const pid_t child = ::fork();
  if (child == 0) try {
      ::_exit(send_more_descriptors_than_may_be_on_their_way());
    } catch (const Error&) {
      ::_exit(9);
    }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace lockstep
