#include "src/net/socket.h"

#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <system_error>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "src/base/first_line.h"
#include "src/base/log.h"
#include "src/net/parents_sockets.h"
#include "src/net/socket_address.h"
#include "src/net/wait.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;

// A host whose packets vanish (a firewall) must not use the whole deadline when
// the name has other addresses.
constexpr auto kLongestAttempt = 10s;

// The kernel notices a peer whose host vanished silently after 12 to 15 s. An
// idle connection survives a link that is down for 10 s: the kernel gives up a
// second after the last probe, which it sends at the earliest 11 s after the
// last answer.
constexpr int kKeepAliveIdleSeconds = 3;
constexpr int kKeepAliveProbeSeconds = 1;
constexpr int kKeepAliveProbes = 12;

std::string reason(int error_number) {
  return std::generic_category().message(error_number);
}

FileDescriptor open_socket(int family) {
  FileDescriptor socket = keep_from_children([family] {
    return FileDescriptor(
        ::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  });
  if (!socket && (errno == EMFILE || errno == ENFILE))
    throw SystemError("could not create a socket", errno);
  return socket;
}

void set_option(int socket, int level, int name, int value) {
  // These options are optional: the socket also works without them.
  ::setsockopt(socket, level, name, &value, sizeof value);
}

void tune(int socket) {
  set_option(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(socket, IPPROTO_TCP, TCP_KEEPIDLE, kKeepAliveIdleSeconds);
  set_option(socket, IPPROTO_TCP, TCP_KEEPINTVL, kKeepAliveProbeSeconds);
  set_option(socket, IPPROTO_TCP, TCP_KEEPCNT, kKeepAliveProbes);
}

// The errno value, 0 for success.
int listen_at_address(FileDescriptor& socket, const SocketAddress& address) {
  socket = open_socket(address.storage.ss_family);
  if (!socket) return errno;
  // A port whose last connections are in TIME_WAIT is not in use.
  set_option(socket.get(), SOL_SOCKET, SO_REUSEADDR, 1);
  // The IPv6 wildcard address includes IPv4.
  if (address.storage.ss_family == AF_INET6)
    set_option(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, 0);
  if (::bind(socket.get(), address.get(), address.length) != 0) return errno;
  if (::listen(socket.get(), SOMAXCONN) != 0) return errno;
  return 0;
}

// For a host that has no connections to itself.
constexpr const char* kMakeLoopback =
    "bring up this host's loopback interface: ip link set lo up; ip address "
    "add 127.0.0.1/8 dev lo";

[[noreturn]] void fail_to_listen(const std::string& host, int port,
                                 int error_number) {
  const char* next = "use an address of this host";
  if (error_number == EADDRINUSE)
    next =
        "end the program that holds the port (ss -ltnp shows it), choose "
        "another port, or port 0 for any free one";
  if (error_number == EADDRNOTAVAIL && is_loopback_everywhere(host))
    next = kMakeLoopback;
  if (error_number == EACCES) next = "choose a port above 1023";
  const std::string text =
      fmt::format("could not listen at {}: {}\n  next:    {}",
                  host_and_port(host, port), reason(error_number), next);
  if (error_number == EADDRINUSE) throw PortTaken(text);
  throw NetworkError(text);
}

FileDescriptor listen_at_first(const std::vector<SocketAddress>& addresses,
                               const std::string& host, int port) {
  int error_number = EADDRNOTAVAIL;
  for (const SocketAddress& address : addresses) {
    FileDescriptor socket;
    error_number = listen_at_address(socket, address);
    if (error_number == 0) return socket;
    // "localhost" may resolve to an IPv6 address that this host does not have.
    // Any other failure is final: if this process listened on a later address
    // of the name, peers that try the first would reach another server.
    if (error_number != EADDRNOTAVAIL && error_number != EAFNOSUPPORT) break;
  }
  fail_to_listen(host, port, error_number);
}

// When no socket listens, the kernel may choose the destination port as the
// source port and connect the socket to itself (simultaneous open).
int refuse_self(int socket, const SocketAddress& called) {
  return local_address(socket).text() == called.text() ? ECONNREFUSED : 0;
}

// The errno value: 0 for success, EINPROGRESS while the attempt goes on.
int begin(FileDescriptor& socket, const SocketAddress& address) {
  socket = open_socket(address.storage.ss_family);
  if (!socket) return errno;
  tune(socket.get());
  if (::connect(socket.get(), address.get(), address.length) == 0)
    return refuse_self(socket.get(), address);
  return errno == EINTR ? EINPROGRESS : errno;
}

// How an attempt has ended: the errno value, 0 for success.
int outcome_of(int socket) {
  int outcome = 0;
  socklen_t size = sizeof outcome;
  if (::getsockopt(socket, SOL_SOCKET, SO_ERROR, &outcome, &size) != 0)
    return errno;
  if (outcome != 0) return outcome;
  SocketAddress called;
  called.length = sizeof called.storage;
  if (::getpeername(socket, reinterpret_cast<sockaddr*>(&called.storage),
                    &called.length) != 0)
    return errno;
  return refuse_self(socket, called);
}

// The errno value, 0 for success.
int connect_to_address(FileDescriptor& socket, const SocketAddress& address,
                       Deadline deadline, const Cancellation* cancellation) {
  if (const int begun = begin(socket, address); begun != EINPROGRESS)
    return begun;
  switch (wait_for(socket.get(), POLLOUT, deadline, cancellation)) {
    case WaitResult::kReady:
      return outcome_of(socket.get());
    case WaitResult::kTimedOut:
      return ETIMEDOUT;
    case WaitResult::kCancelled:
      break;
  }
  return ECANCELED;
}

// One pass over the addresses of a host. Without a socket, `failure` says why.
// Errors that a retry may fix are not thrown, so retrying needs no handler.
struct Attempt {
  FileDescriptor socket;
  std::string failure;
  bool is_refused = false;
  bool is_vain = false;  // a retry meets the same
};

Attempt attempt(const std::vector<SocketAddress>& addresses, Deadline deadline,
                const Cancellation* cancellation) {
  int error_number = EADDRNOTAVAIL;
  bool is_unreachable = false;
  bool may_come = false;  // a server, at one of them
  for (const SocketAddress& address : addresses) {
    FileDescriptor socket;
    error_number = connect_to_address(
        socket, address, std::min(deadline, Deadline(kLongestAttempt)),
        cancellation);
    if (error_number == 0) return {std::move(socket), ""};
    if (error_number == ECANCELED)
      throw Cancelled(
          fmt::format("connecting to {} was cancelled", address.text()));
    // "localhost" may be ::1 too, which an interface that is down lacks.
    may_come |= !address.is_loopback() ||
                (error_number != ENETUNREACH && error_number != EADDRNOTAVAIL);
    is_unreachable |= error_number == ENETUNREACH;
  }
  if (is_unreachable && !may_come)
    return {.socket = {},
            .failure = fmt::format("{}\n  next:    {}", reason(error_number),
                                   kMakeLoopback),
            .is_vain = true};
  return {{}, reason(error_number), error_number == ECONNREFUSED};
}

Attempt attempt(const std::string& host, int port, Deadline deadline,
                const Cancellation* cancellation) {
  std::vector<SocketAddress> addresses;
  try {
    addresses = resolve(host, port);
  } catch (const NetworkError& error) {
    return {{}, error.what()};
  }
  return attempt(addresses, deadline, cancellation);
}

// The socket of `made`, an attempt to reach `called`.
FileDescriptor socket_of(Attempt made, const std::string& called) {
  if (made.socket) return std::move(made.socket);
  const std::string text =
      fmt::format("could not connect to {}: {}", called, made.failure);
  if (made.is_refused) throw ConnectionRefused(text);
  throw NetworkError(text);
}

// On one line.
std::string describe_long_wait(const std::string& host, int port,
                               const std::string& failure) {
  return fmt::format(
      "still waiting for {}, where rank 0 or the launcher should serve the "
      "store: {}",
      host_and_port(host, port), first_line(failure));
}

}  // namespace

FileDescriptor listen_at(const std::string& host, int port) {
  return listen_at_first(resolve(host, port), host, port);
}

FileDescriptor listen_everywhere(int port) {
  std::vector<SocketAddress> addresses = resolve("::", port);
  // The kernel has no IPv6.
  for (const SocketAddress& address : resolve("0.0.0.0", port))
    addresses.push_back(address);
  return listen_at_first(addresses, "::", port);
}

FileDescriptor accept_from(int listener) {
  FileDescriptor socket = keep_from_children([listener] {
    return FileDescriptor(
        ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  });
  if (socket) {
    tune(socket.get());
    return socket;
  }
  if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)
    throw SystemError("could not accept a connection", errno);
  // No connection is pending, or the client has closed it.
  return {};
}

FileDescriptor connect_once(const std::string& host, int port,
                            Deadline deadline,
                            const Cancellation* cancellation) {
  return socket_of(attempt(host, port, deadline, cancellation),
                   host_and_port(host, port));
}

FileDescriptor connect_once(const SocketAddress& address, Deadline deadline) {
  return socket_of(attempt({address}, deadline, nullptr), address.text());
}

BegunConnection begin_to_connect(const std::string& address, int port) try {
  FileDescriptor socket;
  const int begun = begin(socket, resolve(address, port).front());
  if (begun == 0 || begun == EINPROGRESS) return {std::move(socket)};
  return {{}, begun};
} catch (const NetworkError&) {
  return {{}, EADDRNOTAVAIL};
}

int connect_error(int socket) { return outcome_of(socket); }

FileDescriptor connect_to(const std::string& host, int port, Deadline deadline,
                          const Cancellation* cancellation,
                          std::chrono::nanoseconds warn_after) {
  const auto start = Deadline::Clock::now();
  const Deadline timeout(warn_after);
  Backoff backoff(10ms, 500ms);
  bool told = false;
  bool warned = false;
  while (true) {
    Attempt made = attempt(host, port, deadline, cancellation);
    if (made.socket || made.is_vain)
      return socket_of(std::move(made), host_and_port(host, port));
    if (!std::exchange(told, true))
      log(LogLevel::kInfo,
          fmt::format("waiting for {}: {}", host_and_port(host, port),
                      made.failure));
    if (timeout.expired() && !std::exchange(warned, true))
      log(LogLevel::kWarn, describe_long_wait(host, port, made.failure));
    const WaitResult waited = backoff.wait(deadline, cancellation);
    if (waited == WaitResult::kReady) continue;
    if (waited == WaitResult::kCancelled)
      throw Cancelled(fmt::format("connecting to {} was cancelled",
                                  host_and_port(host, port)));
    throw Timeout(fmt::format(
        "could not connect to {} within {:.1f} s: {}\n"
        "  likely:  the process that listens there has not started, has died, "
        "or listens at another address\n"
        "  next:    check host and port (MASTER_ADDR and MASTER_PORT) on every "
        "rank, the log of the rank that serves, and that no firewall closes "
        "port {}",
        host_and_port(host, port),
        std::chrono::duration<double>(Deadline::Clock::now() - start).count(),
        made.failure, port));
  }
}

Transfer receive_some(int socket, std::span<std::byte> room) {
  const auto count = ::recv(socket, room.data(), room.size(), 0);
  if (count > 0) return {static_cast<std::size_t>(count), false};
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return {};
  return {0, true};
}

Transfer send_some(int socket, std::span<const std::byte> data) {
  const auto count = ::send(socket, data.data(), data.size(), MSG_NOSIGNAL);
  if (count >= 0) return {static_cast<std::size_t>(count), false};
  if (errno == EAGAIN || errno == EINTR) return {};
  return {0, true};
}

}  // namespace lockstep
