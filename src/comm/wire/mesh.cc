#include "src/comm/wire/mesh.h"

#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <optional>

#include "lockstep/base/error.h"
#include "src/base/log.h"
#include "src/base/secret.h"
#include "src/net/socket.h"
#include "src/net/socket_address.h"
#include "src/net/wait.h"
#include "src/store/host_address.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;

constexpr std::uint32_t kProtocolVersion = 1;
// After this long without an answer, the rank checks whether the invitation was
// a stale one of an earlier group of this name.
constexpr auto kAnswerPatience = 3s;
// How often a waiting rank checks whether the store still exists and whether
// the group can still form.
constexpr auto kStoreLook = 500ms;
// How long a stranger may take to identify itself.
constexpr auto kHelloPatience = 30s;
// The most strangers that may be doing so, besides the ranks that this rank
// called; a further one replaces the oldest.
constexpr std::size_t kMostStrangers = 256;
// How long sent bytes may stay unacknowledged by the peer's kernel.
constexpr int kUnansweredMilliseconds = 15000;

// A rank's entry in the store. Plain bytes: both ends are the same build.
struct Invitation {
  std::uint32_t version = kProtocolVersion;
  std::int32_t port = 0;
  std::uint64_t nonce = 0;
  Secret secret{};
  std::array<char, 64> address{};
  std::array<char, 64> host{};
};

// The greeting of the connecting rank, and the answer.
struct Hello {
  std::array<char, 8> magic{'l', 'o', 'c', 'k', 'w', 'i', 'r', 'e'};
  std::uint32_t version = kProtocolVersion;
  std::int32_t rank = 0;
  Secret yours{};  // the called rank's
  Secret mine{};
  std::array<char, 64> host{};
};

template <std::size_t size>
void copy_text(std::array<char, size>& to, const std::string& from) {
  std::memcpy(to.data(), from.data(), std::min(from.size(), size - 1));
}

// A connected process that has not proved its identity yet, or a rank that this
// rank called and that has not answered.
struct Stranger {
  FileDescriptor socket;
  int called = -1;  // the rank that this rank called
  Deadline deadline;
  Secret shown{};  // sent to the called rank
  Hello hello{};
  std::size_t heard = 0;
};

class Meeting {
 public:
  Meeting(const GroupIdentity& identity, Store& store,
          const std::string& address, Deadline deadline)
      : identity_(identity),
        store_(store),
        deadline_(deadline),
        listener_(listen_at(address, 0)) {
    mine_.port = local_address(listener_.get()).port();
    mine_.secret = random_value<Secret>();
    mine_.nonce = random_value<std::uint64_t>();
    copy_text(mine_.address, address);
    copy_text(mine_.host, own_host_name());
    const auto size = static_cast<std::size_t>(identity.size);
    mesh_.sockets.resize(size);
    mesh_.hosts.resize(size);
    mesh_.hosts[static_cast<std::size_t>(identity.rank)] = own_host_name();
  }

  Mesh run() {
    store_.set(key(identity_.rank), std::as_bytes(std::span(&mine_, 1)),
               deadline_);
    if (identity_.rank == 0) mesh_.nonce = fmt::format("{:x}", mine_.nonce);
    for (int rank = 0; rank < identity_.rank; ++rank) call(rank);
    while (missing_ > 0) hear_next();
    // A later group of this name must not find this one's invitation.
    store_.erase(key(identity_.rank), deadline_);
    return std::move(mesh_);
  }

 private:
  std::string key(int rank) const {
    return fmt::format("group/{}/wire/{}", identity_.name, rank);
  }

  // Connects to rank `rank` and greets it; retries if that fails, because the
  // store may hold an invitation of an earlier group.
  void call(int rank) {
    while (true) {
      const auto found = look_up(rank, deadline_);
      if (!found) throw Timeout(describe_missing());
      const Invitation& invitation = *found;
      try {
        Stranger called{
            connect_once(invitation.address.data(), invitation.port, deadline_),
            rank, Deadline(kAnswerPatience), invitation.secret};
        Hello hello{.rank = identity_.rank,
                    .yours = invitation.secret,
                    .mine = mine_.secret,
                    .host = mine_.host};
        send_hello(called.socket.get(), hello);
        if (rank == 0) mesh_.nonce = fmt::format("{:x}", invitation.nonce);
        mesh_.hosts[static_cast<std::size_t>(rank)] = invitation.host.data();
        strangers_.push_back(std::move(called));
        return;
      } catch (const NetworkError& error) {
        log(LogLevel::kDebug, error.what());
        retry_.wait(deadline_);
        check_peers();
      }
      if (deadline_.expired()) throw Timeout(describe_missing());
    }
  }

  // Throws if the store is gone, which missing ranks need, or if a missing rank
  // has ended.
  void check_peers() {
    if (!next_look_.expired()) return;
    store_.wait_any(std::array{key(identity_.rank)}, deadline_);
    next_look_ = Deadline(kStoreLook);
  }

  // Rank `rank`'s invitation; empty if it does not write one in time.
  std::optional<Invitation> look_up(int rank, Deadline deadline) {
    Bytes bytes;
    try {
      bytes = store_.get(key(rank), deadline);
    } catch (const Timeout&) {
      return std::nullopt;
    }
    Invitation invitation;
    if (bytes.size() != sizeof invitation)
      throw NetworkError(fmt::format(
          "group \"{}\": {} speaks another version of the wire protocol\n"
          "  next:    start every rank with the same build of Lockstep",
          identity_.name, identity_.describe(rank)));
    std::memcpy(&invitation, bytes.data(), sizeof invitation);
    invitation.address.back() = invitation.host.back() = '\0';
    return invitation;
  }

  // A new connection accepts this many bytes at once.
  static void send_hello(int socket, const Hello& hello) {
    const Transfer sent =
        send_some(socket, std::as_bytes(std::span(&hello, 1)));
    if (sent.bytes != sizeof hello)
      throw NetworkError("a rank disconnected before the greeting");
  }

  void hear_next() {
    std::vector<pollfd> items{{listener_.get(), POLLIN, 0}};
    Deadline next = std::min(deadline_, next_look_);
    for (const Stranger& stranger : strangers_) {
      items.push_back({stranger.socket.get(), POLLIN, 0});
      next = std::min(next, stranger.deadline);
    }
    if (::poll(items.data(), items.size(), next.poll_milliseconds()) < 0 &&
        errno != EINTR)
      throw SystemError("could not poll the ranks' sockets", errno);
    if (deadline_.expired()) throw Timeout(describe_missing());
    check_peers();
    for (std::size_t i = items.size(); i-- > 1;)
      if (items[i].revents != 0 || strangers_[i - 1].deadline.expired())
        hear(i - 1);
    if (items[0].revents != 0) accept_next();
  }

  // The oldest stranger makes room for a new one: it has had the most time.
  void accept_next() {
    try {
      if (FileDescriptor accepted = accept_from(listener_.get()))
        strangers_.push_back(
            {std::move(accepted), -1, Deadline(kHelloPatience)});
    } catch (const SystemError&) {  // the process is out of descriptors
      if (!drop_oldest_stranger()) throw;
    }
    if (strangers_.size() >
        kMostStrangers + static_cast<std::size_t>(identity_.rank))
      drop_oldest_stranger();
  }

  // Drops the oldest stranger that this rank did not call.
  bool drop_oldest_stranger() {
    const auto oldest = std::ranges::find_if(
        strangers_, [](const Stranger& each) { return each.called < 0; });
    if (oldest == strangers_.end()) return false;
    strangers_.erase(oldest);
    return true;
  }

  // Reads a stranger's message; drops a stranger that disconnected or took too
  // long, and calls it again if it was called.
  void hear(std::size_t index) {
    Stranger& stranger = strangers_[index];
    const auto room = std::as_writable_bytes(std::span(&stranger.hello, 1))
                          .subspan(stranger.heard);
    const Transfer received = receive_some(stranger.socket.get(), room);
    stranger.heard += received.bytes;
    const bool complete = stranger.heard == sizeof(Hello);
    if (!complete && !received.ended && may_still_speak(stranger)) return;
    Stranger known = std::move(stranger);
    strangers_.erase(strangers_.begin() + static_cast<std::ptrdiff_t>(index));
    if (complete && is_ours(known)) {
      admit(std::move(known));
    } else if (known.called >= 0) {
      retry_.wait(deadline_);
      call(known.called);
    }
  }

  // A called rank may be busy; but if its invitation has changed, the call
  // reached another process.
  bool may_still_speak(Stranger& stranger) {
    if (!stranger.deadline.expired()) return true;
    if (stranger.called < 0) return false;
    stranger.deadline = Deadline(kAnswerPatience);
    const auto now =
        look_up(stranger.called, std::min(deadline_, Deadline(1s)));
    return !now || equal_in_constant_time(now->secret, stranger.shown);
  }

  bool is_ours(const Stranger& stranger) const {
    const Hello& hello = stranger.hello;
    return hello.magic == Hello{}.magic && hello.version == kProtocolVersion &&
           equal_in_constant_time(hello.yours, mine_.secret) &&
           (stranger.called < 0 || stranger.called == hello.rank);
  }

  void admit(Stranger peer) {
    const int rank = peer.hello.rank;
    if (rank < 0 || rank >= identity_.size || rank == identity_.rank ||
        mesh_.sockets[static_cast<std::size_t>(rank)])
      throw InvalidArgument(fmt::format(
          "group \"{}\" of {} ranks: a process joined as rank {}, which is "
          "taken or out of range\n  next:    give every process its own RANK, "
          "0 "
          "to {}",
          identity_.name, identity_.size, rank, identity_.size - 1));
    const auto r = static_cast<std::size_t>(rank);
    if (peer.called < 0) {
      send_hello(peer.socket.get(), {.rank = identity_.rank,
                                     .yours = peer.hello.mine,
                                     .mine = {},
                                     .host = mine_.host});
      peer.hello.host.back() = '\0';
      mesh_.hosts[r] = peer.hello.host.data();
    }
    ::setsockopt(peer.socket.get(), IPPROTO_TCP, TCP_USER_TIMEOUT,
                 &kUnansweredMilliseconds, sizeof kUnansweredMilliseconds);
    mesh_.sockets[r] = std::move(peer.socket);
    --missing_;
  }

  std::string describe_missing() const {
    std::vector<std::string> ranks;
    for (int rank = 0; rank < identity_.size; ++rank)
      if (rank != identity_.rank &&
          !mesh_.sockets[static_cast<std::size_t>(rank)])
        ranks.push_back(identity_.describe(rank));
    return fmt::format(
        "group \"{}\" of {} ranks could not form over the network: timed out "
        "on rank {}, which listens at {}\n"
        "  missing: {}\n"
        "  likely:  not started, dead, or the network between the hosts blocks "
        "the connection\n"
        "  next:    read the logs of the missing ranks; LOCKSTEP_INTERFACE "
        "names the interface to use; LOCKSTEP_LOG=debug says which one it is",
        identity_.name, identity_.size, identity_.rank,
        host_and_port(mine_.address.data(), mine_.port),
        fmt::join(ranks, ", "));
  }

  const GroupIdentity& identity_;
  Store& store_;
  const Deadline deadline_;
  FileDescriptor listener_;
  Invitation mine_;
  Deadline next_look_{kStoreLook};
  std::vector<Stranger> strangers_;  // in the order of their arrival
  Backoff retry_{std::chrono::milliseconds(5), std::chrono::milliseconds(200)};
  Mesh mesh_;
  int missing_ = identity_.size - 1;
};

}  // namespace

Mesh connect_mesh(const GroupIdentity& identity, Store& store,
                  const std::string& address, Deadline deadline) {
  return Meeting(identity, store, address, deadline).run();
}

}  // namespace lockstep
