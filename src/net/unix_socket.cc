#include "src/net/unix_socket.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <fstream>

#include "lockstep/base/error.h"
#include "src/net/wait.h"

namespace lockstep {
namespace {

constexpr int kSocketType = SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK;

FileDescriptor make_socket() {
  FileDescriptor socket(::socket(AF_UNIX, kSocketType, 0));
  if (!socket) throw SystemError("could not create a Unix socket", errno);
  return socket;
}

void wait_ready(int descriptor, short events, Deadline deadline,
                const char* what) {
  pollfd item{descriptor, events, 0};
  while (true) {
    const int ready = ::poll(&item, 1, deadline.poll_milliseconds());
    if (ready > 0) return;
    if (ready == 0)
      throw Timeout(fmt::format("timed out {} a process of this host", what));
    if (errno != EINTR) throw SystemError("could not poll a socket", errno);
  }
}

// The kernel delivers as many descriptors as the message and this process have
// room for. It tells that it dropped some, but not why.
void take_descriptors(msghdr& message, std::vector<FileDescriptor>& taken) {
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int number = -1;
      std::memcpy(&number, CMSG_DATA(header) + i * sizeof(int), sizeof number);
      taken.emplace_back(number);
    }
  }
  if ((message.msg_flags & MSG_CTRUNC) == 0) return;
  if (taken.size() < UnixConnection::kMaxDescriptors)
    throw SystemError(
        "could not receive descriptors from a process of this host", EMFILE);
  throw NetworkError("a process of this host passed too many descriptors");
}

// The kernel does not tell when it has room again, so this retries until
// `deadline`.
class Insistence {
 public:
  explicit Insistence(Deadline deadline) : deadline_(deadline) {}

  void wait(const char* why) {
    if (backoff_.wait(deadline_) == WaitResult::kTimedOut)
      throw Timeout(fmt::format("timed out: {}", why));
  }

 private:
  const Deadline deadline_;
  Backoff backoff_{std::chrono::milliseconds(1), std::chrono::milliseconds(50)};
};

[[noreturn]] void fail(const char* what, int error_number) {
  if (error_number != EPIPE && error_number != ECONNRESET)
    throw SystemError(fmt::format("could not {} a process of this host", what),
                      error_number);
  throw NetworkError(fmt::format("could not {} a process of this host: {}",
                                 what, std::strerror(error_number)));
}

// In a user namespace, all users without an id there appear as one id, which
// may also be a real user's.
bool may_be_several_users(uid_t user) {
  constexpr uid_t kOverflow = 65534;  // Linux's default; 0 and others are safe
  constexpr std::uint64_t kAll = 0xffffffff;
  if (user != kOverflow) return false;
  std::ifstream map("/proc/self/uid_map");
  std::uint64_t first = 0, outside = 0, count = 0;
  map >> first >> outside >> count;
  return !map || count < kAll;
}

enum class Look { kMessage, kNothingYet, kEnd };

// Receives the next message, if one has arrived.
Look look(int socket, UnixConnection::Message& result) {
  result.bytes.resize(UnixConnection::kMaxMessageBytes);
  result.descriptors.clear();
  iovec part{result.bytes.data(), result.bytes.size()};
  alignas(cmsghdr)
      std::array<std::byte,
                 CMSG_SPACE(sizeof(int) * UnixConnection::kMaxDescriptors)>
          control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  ssize_t received = -1;
  do received = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  while (received < 0 && errno == EINTR);
  if (received < 0 && errno == EAGAIN) return Look::kNothingYet;
  if (received < 0 && errno == ECONNRESET) return Look::kEnd;
  if (received < 0) fail("receive from", errno);
  take_descriptors(message, result.descriptors);
  result.bytes.resize(static_cast<std::size_t>(received));
  return received > 0 ? Look::kMessage : Look::kEnd;
}

}  // namespace

void UnixConnection::send(std::span<const std::byte> bytes,
                          std::span<const int> descriptors, Deadline deadline) {
  LOCKSTEP_CHECK(descriptors.size() <= kMaxDescriptors &&
                     bytes.size() <= kMaxMessageBytes && !bytes.empty(),
                 "message too large");
  iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
  alignas(cmsghdr)
      std::array<std::byte, CMSG_SPACE(sizeof(int) * kMaxDescriptors)>
          control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (!descriptors.empty()) {
    message.msg_control = control.data();
    message.msg_controllen = CMSG_SPACE(descriptors.size_bytes());
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(descriptors.size_bytes());
    std::memcpy(CMSG_DATA(header), descriptors.data(),
                descriptors.size_bytes());
  }
  Insistence insistence(deadline);
  while (::sendmsg(socket_.get(), &message, MSG_NOSIGNAL) < 0) {
    if (errno == EAGAIN)
      wait_ready(socket_.get(), POLLOUT, deadline, "sending to");
    else if (errno == ETOOMANYREFS)
      insistence.wait(
          "this user has reached the limit on file descriptors in flight "
          "between processes");
    else if (errno != EINTR)
      fail("send to", errno);
  }
}

UnixConnection::Message UnixConnection::receive(Deadline deadline) {
  Message message;
  Look found = look(socket_.get(), message);
  while (found == Look::kNothingYet) {
    wait_ready(socket_.get(), POLLIN, deadline, "waiting for");
    found = look(socket_.get(), message);
  }
  // The kernel checks for a message first and for the end second. A message
  // that the peer sent in between, before it closed, is found by a second
  // attempt. The same holds when the peer left data unread: the kernel reports
  // that first, once.
  for (int again = 0; again < 2 && found == Look::kEnd; ++again)
    found = look(socket_.get(), message);
  if (found != Look::kMessage)
    throw NetworkError("a process of this host closed its connection");
  return message;
}

uid_t UnixConnection::peer_user() const {
  ucred peer{};
  socklen_t size = sizeof peer;
  if (::getsockopt(socket_.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0)
    throw SystemError("could not get the user of a process of this host",
                      errno);
  return peer.uid;
}

bool UnixConnection::is_of_own_user() const {
  const uid_t user = ::geteuid();
  return peer_user() == user && !may_be_several_users(user);
}

UnixListener::UnixListener() : socket_(make_socket()) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  // Binding an address with only the family makes the kernel choose a free
  // abstract name.
  if (::bind(socket_.get(), reinterpret_cast<const sockaddr*>(&address),
             sizeof address.sun_family) != 0)
    throw SystemError("could not bind a Unix socket", errno);
  socklen_t length = sizeof address;
  if (::getsockname(socket_.get(), reinterpret_cast<sockaddr*>(&address),
                    &length) != 0)
    throw SystemError("could not learn a Unix socket's name", errno);
  name_.assign(address.sun_path + 1,
               length - offsetof(sockaddr_un, sun_path) - 1);
  if (::listen(socket_.get(), 512) != 0)
    throw SystemError("could not listen on a Unix socket", errno);
}

FileDescriptor UnixListener::accept() {
  FileDescriptor accepted(
      ::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!accepted && (errno == EMFILE || errno == ENFILE || errno == ENOBUFS ||
                    errno == ENOMEM))
    throw SystemError("could not accept a process of this host", errno);
  return accepted;
}

UnixConnection connect_unix(const std::string& name, Deadline deadline) {
  FileDescriptor socket = make_socket();
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (name.empty() || name.size() + 1 > sizeof address.sun_path)
    throw InvalidArgument(
        fmt::format("\"{}\" cannot be a Unix socket's name", name));
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  const auto length =
      static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  Insistence insistence(deadline);
  while (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address),
                   length) != 0) {
    if (errno == EAGAIN)
      insistence.wait(
          "a process of this host has too many pending connections to take "
          "this one");
    else if (errno != EINTR)
      throw NetworkError(
          fmt::format("no process of this host listens on the abstract socket "
                      "\"{}\": {}",
                      name, std::strerror(errno)));
  }
  return UnixConnection(std::move(socket));
}

}  // namespace lockstep
