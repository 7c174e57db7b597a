#include "src/net/socket.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <string>
#include <thread>
#include <utility>

#include "lockstep/base/error.h"
#include "src/base/testing/error_text.h"
#include "src/base/testing/test_timeout.h"
#include "src/net/free_port.h"
#include "src/net/socket_address.h"
#include "src/net/testing/another_user.h"
#include "src/net/testing/scarce_descriptors.h"
#include "src/net/unix_socket.h"
#include "src/net/wait.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;

constexpr const char* kHost = "127.0.0.1";

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(SocketAddress, KnowsLoopbackFromTheRest) {
  const auto first = [](const char* host) { return resolve(host, 80).at(0); };
  EXPECT_TRUE(first("127.0.0.1").is_loopback());
  EXPECT_TRUE(first("127.8.9.1").is_loopback());
  EXPECT_TRUE(first("::1").is_loopback());
  EXPECT_TRUE(first("::ffff:127.0.0.1").is_loopback());
  EXPECT_FALSE(first("0.0.0.0").is_loopback());
  EXPECT_FALSE(first("::").is_loopback());
  EXPECT_FALSE(first("192.0.2.1").is_loopback());
  EXPECT_FALSE(first("::ffff:192.0.2.1").is_loopback());
}

TEST(SocketAddress, KnowsWhatEveryHostTakesForItself) {
  for (const char* host : {"localhost", "127.0.0.1", "127.0.1.1", "::1"})
    EXPECT_TRUE(is_loopback_everywhere(host)) << host;
  for (const char* host : {"192.0.2.1", "node-a", "::", "0.0.0.0", "127.1"})
    EXPECT_FALSE(is_loopback_everywhere(host)) << host;
}

TEST(SocketAddress, KnowsWhatThisHostHas) {
  EXPECT_TRUE(has_one_of(resolve("127.0.0.1", 80)));
  // TEST-NET-1, RFC 5737: an unused address.
  EXPECT_FALSE(has_one_of(resolve("192.0.2.1", 80)));
}

TEST(SocketAddress, WritesIpv6InBrackets) {
  EXPECT_EQ(resolve("127.0.0.1", 80).at(0).text(), "127.0.0.1:80");
  EXPECT_EQ(resolve("::1", 65535).at(0).text(), "[::1]:65535");
  EXPECT_EQ(host_and_port("node-a", 1), "node-a:1");
}

TEST(SocketAddress, NamesTheHostThatNobodyKnows) {
  const std::string message =
      error_text<NetworkError>([] { resolve("no-such-host.invalid", 80); });
  EXPECT_TRUE(contains(message, "\"no-such-host.invalid\"")) << message;
}

// Issue 43, point 17: a rank waited for its own store until the deadline. The
// child is in a network of its own, where nothing is up.
TEST(Socket, SaysThatTheLoopbackInterfaceIsDown) {
  LOCKSTEP_NEEDS_ROOT();
  constexpr int kRefused = 77;
  const pid_t child = ::fork();
  if (child == 0) {
    if (::unshare(CLONE_NEWNET) != 0) ::_exit(kRefused);
    const std::string message =
        error_text<NetworkError>([] { connect_to(kHost, 29500, kTimeout); });
    const bool said =
        contains(message, "could not connect to 127.0.0.1:29500") &&
        contains(message, "ip link set lo up");
    if (!said) std::fputs(message.c_str(), stderr);
    ::_exit(said ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  if (WIFEXITED(status) && WEXITSTATUS(status) == kRefused)
    GTEST_SKIP() << "a network of its own cannot be made here";
  EXPECT_EQ(status, 0);
}

TEST(Socket, CarriesBytesBothWays) {
  const FileDescriptor listener = listen_at(kHost, 0);
  const int port = local_address(listener.get()).port();
  const FileDescriptor client = connect_to(kHost, port, kTimeout);
  wait_for(listener.get(), POLLIN, kTimeout);
  const FileDescriptor server = accept_from(listener.get());
  ASSERT_TRUE(server);
  EXPECT_FALSE(accept_from(listener.get())) << "no other connection is pending";
  std::array<std::byte, 3> room{};
  const std::array<std::byte, 3> sent{std::byte{1}, std::byte{2}, std::byte{3}};
  for (const auto& [from, to] :
       {std::pair(client.get(), server.get()), {server.get(), client.get()}}) {
    EXPECT_EQ(receive_some(to, room).bytes, 0u);
    EXPECT_EQ(send_some(from, sent).bytes, sent.size());
    wait_for(to, POLLIN, kTimeout);
    EXPECT_EQ(receive_some(to, room).bytes, sent.size());
    EXPECT_EQ(room, sent);
  }
}

TEST(Socket, ClosesItselfInAnExecutedProgramAndNeverBlocks) {
  const FileDescriptor listener = listen_at(kHost, 0);
  const int port = local_address(listener.get()).port();
  const FileDescriptor client = connect_to(kHost, port, kTimeout);
  wait_for(listener.get(), POLLIN, kTimeout);
  const FileDescriptor server = accept_from(listener.get());
  for (const int socket : {listener.get(), client.get(), server.get()}) {
    EXPECT_NE(::fcntl(socket, F_GETFD) & FD_CLOEXEC, 0);
    EXPECT_NE(::fcntl(socket, F_GETFL) & O_NONBLOCK, 0);
  }
}

TEST(Socket, SaysThatThePeerIsGone) {
  const FileDescriptor listener = listen_at(kHost, 0);
  const int port = local_address(listener.get()).port();
  const FileDescriptor client = connect_to(kHost, port, kTimeout);
  wait_for(listener.get(), POLLIN, kTimeout);
  accept_from(listener.get()).reset();
  wait_for(client.get(), POLLIN, kTimeout);
  std::array<std::byte, 1> byte{};
  EXPECT_TRUE(receive_some(client.get(), byte).ended);
  // The first send may still succeed; the peer answers with a reset.
  send_some(client.get(), byte);
  wait_for(client.get(), POLLHUP, kTimeout);
  EXPECT_TRUE(send_some(client.get(), byte).ended);
}

TEST(Socket, BindsTheAddressOfItsHostAndNoOther) {
  const FileDescriptor listener = listen_at("localhost", 0);
  EXPECT_TRUE(local_address(listener.get()).is_loopback());
}

TEST(Socket, NamesThePortThatIsInUse) {
  const FileDescriptor listener = listen_at(kHost, 0);
  const int port = local_address(listener.get()).port();
  const std::string message =
      error_text<NetworkError>([&] { listen_at(kHost, port); });
  EXPECT_TRUE(contains(message, "127.0.0.1:" + std::to_string(port)))
      << message;
  EXPECT_TRUE(contains(message, "choose another port")) << message;
}

TEST(Connect, TriesOnceOrUntilTheDeadline) {
  const int port = find_free_port();
  const std::string address = "127.0.0.1:" + std::to_string(port);
  const std::string once =
      error_text<NetworkError>([&] { connect_once(kHost, port, kTimeout); });
  EXPECT_TRUE(contains(once, address + ": Connection refused")) << once;
  const std::string patient =
      error_text<Timeout>([&] { connect_to(kHost, port, 30ms); });
  EXPECT_TRUE(contains(patient, address)) << patient;
  EXPECT_TRUE(contains(patient, "next:")) << patient;
}

TEST(Connect, BeginsWithoutWaitingAndSaysHowItEnded) {
  const auto how_it_ends = [](int port) {
    const BegunConnection begun = begin_to_connect(kHost, port);
    if (!begun.socket) return begun.error;
    EXPECT_EQ(wait_for(begun.socket.get(), POLLOUT, kTimeout),
              WaitResult::kReady);
    return connect_error(begun.socket.get());
  };
  EXPECT_EQ(how_it_ends(find_free_port()), ECONNREFUSED);
  const FileDescriptor listener = listen_at(kHost, 0);
  EXPECT_EQ(how_it_ends(local_address(listener.get()).port()), 0);
}

TEST(Connect, WaitsForAListenerThatComesLater) {
  const int port = find_free_port();
  std::thread early([&] { EXPECT_TRUE(connect_to(kHost, port, kTimeout)); });
  const FileDescriptor listener = listen_at(kHost, port);
  early.join();
}

TEST(Connect, EndsWhenItIsCancelled) {
  const int port = find_free_port();
  Cancellation cancellation;
  std::thread other([&] { cancellation.cancel(); });
  EXPECT_THROW(connect_to(kHost, port, kTimeout, &cancellation), Cancelled);
  other.join();
}

TEST(Connecting, WarnsOnceOnOneLineWhenItTakesLong) {
  const int port = find_free_port();
  testing::internal::CaptureStderr();
  EXPECT_THROW(connect_to(kHost, port, 100ms, nullptr, 1ms), Timeout);
  EXPECT_THROW(connect_to(kHost, port, 100ms, nullptr, 1h), Timeout);
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "lockstep warning: still waiting for " +
                host_and_port(kHost, port) +
                ", where rank 0 or the launcher should serve the store: "
                "Connection refused\n");
}

TEST(TooManyOpenFiles, EndEveryAttemptAtOnceAndSayWhatToDo) {
  const int port = find_free_port();
  UnixListener listener;
  const UnixConnection waiting = connect_unix(listener.name(), kTimeout);
  const ScarceDescriptors limit(0);
  const auto expect_told = [](auto call) {
    const std::string text = error_text<SystemError>(call);
    EXPECT_TRUE(contains(text, "Too many open files\n  next:    ")) << text;
    EXPECT_TRUE(contains(text, "(ulimit -n)")) << text;
  };
  expect_told([&] { connect_to(kHost, port, kTimeout); });
  expect_told([&] { connect_once(kHost, port, kTimeout); });
  expect_told([&] { connect_to("localhost", port, kTimeout); });
  expect_told([] { listen_at(kHost, 0); });
  expect_told([&] { listener.accept(); });
}

TEST(TooManyOpenFiles, AreNoticedWhenDescriptorsArePassed) {
  UnixListener listener;
  UnixConnection sender = connect_unix(listener.name(), kTimeout);
  UnixConnection receiver(listener.accept());
  const std::array<int, 2> passed{0, 0};
  sender.send(std::as_bytes(std::span("x")), passed, kTimeout);
  const ScarceDescriptors limit(0);
  const std::string text =
      error_text<SystemError>([&] { receiver.receive(kTimeout); });
  EXPECT_TRUE(contains(text, "(ulimit -n)")) << text;
}

}  // namespace
}  // namespace lockstep
