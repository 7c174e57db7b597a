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
#include <chrono>
#include <cstring>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "src/base/log.h"
#include "src/base/secret.h"
#include "src/comm/rendezvous/formation.h"
#include "src/net/socket.h"
#include "src/net/socket_address.h"
#include "src/store/host_address.h"
#include "src/store/peek.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;

constexpr std::uint32_t kProtocolVersion = 1;
// How long one attempt to connect may take.
constexpr auto kAttemptPatience = 3s;
// The pauses between the attempts to connect to one rank.
constexpr auto kFirstPause = 5ms;
constexpr auto kLongestPause = 500ms;
// How many pairs of ranks an error names, and how long a rank asks the store
// for them. It does so before its deadline too: ranks that give up at about the
// same time erase what they have written.
constexpr std::size_t kMostPairs = 4;
constexpr auto kReportTakes = 2s;
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

// This rank's calls of an earlier rank.
struct Callee {
  Invitation invitation{};  // the last one; its port is 0 before the first
  std::chrono::milliseconds pause = kFirstPause;
  Deadline next{0s};  // of the next call
  std::string failure{};
  bool is_reached = false;  // it has this rank's hello, and owes an answer
};

// What is known of a connection that is missing.
struct MissingPair {
  std::string text;
  bool is_blocked = true;
};

// A connection that is being made.
struct Attempt {
  int rank = 0;
  FileDescriptor socket;
  Deadline deadline{kAttemptPatience};
};

// Shortly before `deadline`.
Deadline before(Deadline deadline) {
  if (deadline.is_never()) return deadline;
  return Deadline(deadline.when() -
                  std::min<Deadline::Clock::duration>(deadline.remaining() / 4,
                                                      kReportTakes));
}

class Meeting {
 public:
  Meeting(const GroupIdentity& identity, Store& store,
          const std::string& address, Deadline deadline)
      : identity_(identity),
        store_(store),
        deadline_(deadline),
        first_report_(before(deadline)),
        listener_(listen_at(address, 0)) {
    mine_.port = local_address(listener_.get()).port();
    mine_.secret = random_value<Secret>();
    mine_.nonce = random_value<std::uint64_t>();
    copy_text(mine_.address, address);
    copy_text(mine_.host, own_host_name());
    const auto size = static_cast<std::size_t>(identity.size);
    mesh_.sockets.resize(size);
    mesh_.hosts.resize(size);
    mesh_.hosts[index(identity.rank)] = own_host_name();
    callees_.resize(index(identity.rank));
    for (int rank = 0; rank < identity.rank; ++rank) uncalled_.push_back(rank);
  }

  Mesh run() {
    store_.set(key(identity_.rank), std::as_bytes(std::span(&mine_, 1)),
               deadline_);
    if (identity_.rank == 0) mesh_.nonce = fmt::format("{:x}", mine_.nonce);
    while (missing_ > 0) {
      call_all();
      hear_next();
    }
    // A later group of this name must not find this one's invitation.
    store_.erase(key(identity_.rank), deadline_);
    return std::move(mesh_);
  }

 private:
  static std::size_t index(int rank) { return static_cast<std::size_t>(rank); }
  std::string key(int rank) const {
    return fmt::format("group/{}/wire/{}", identity_.name, rank);
  }
  // The sentence with which rank `from` says that it cannot reach rank `to`.
  std::string failure_key(int from, int to) const {
    return fmt::format("group/{}/wire/{}/fails/{}", identity_.name, from, to);
  }

  // Begins to connect to the ranks whose invitations are there and whose pause
  // has ended. Waits for at most one invitation, for kStoreLook.
  void call_all() {
    for (std::size_t left = uncalled_.size(); left > 0; --left) {
      const int rank = uncalled_.front();
      uncalled_.pop_front();
      if (!callees_[index(rank)].next.expired()) {
        uncalled_.push_back(rank);
        continue;
      }
      const auto found =
          look_up(rank, std::min(deadline_, Deadline(kStoreLook)));
      if (!found) return uncalled_.push_back(rank);
      call(rank, *found);
    }
  }

  void call(int rank, const Invitation& invitation) {
    callees_[index(rank)].invitation = invitation;
    mesh_.hosts[index(rank)] = invitation.host.data();
    BegunConnection begun =
        begin_to_connect(invitation.address.data(), invitation.port);
    if (begun.socket)
      attempts_.push_back({rank, std::move(begun.socket)});
    else
      call_again(rank, begun.failure);
  }

  // The attempt may have failed because the store holds an invitation of an
  // earlier group.
  void call_again(int rank, const std::string& failure) {
    Callee& callee = callees_[index(rank)];
    callee.is_reached = false;
    callee.next = Deadline(callee.pause);
    callee.pause =
        std::min<std::chrono::milliseconds>(2 * callee.pause, kLongestPause);
    uncalled_.push_back(rank);
    if (callee.failure == failure) return;
    callee.failure = failure;
    const std::string sentence = describe_failure(rank);
    log(LogLevel::kDebug, sentence);
    store_.set(failure_key(identity_.rank, rank), to_bytes(sentence),
               deadline_);
  }

  // Greets the rank that an attempt, which has ended, has reached.
  void end_attempt(Attempt attempt, short events) {
    const std::string failure =
        events == 0 ? "no answer" : connect_failure(attempt.socket.get());
    if (!failure.empty()) return call_again(attempt.rank, failure);
    const Invitation& invitation = callees_[index(attempt.rank)].invitation;
    const Hello hello{.rank = identity_.rank,
                      .yours = invitation.secret,
                      .mine = mine_.secret,
                      .host = mine_.host};
    if (!send_hello(attempt.socket.get(), hello))
      return call_again(attempt.rank, "the connection ended");
    note_reached(attempt.rank);
    if (attempt.rank == 0) mesh_.nonce = fmt::format("{:x}", invitation.nonce);
    strangers_.push_back({std::move(attempt.socket), attempt.rank,
                          Deadline(kAnswerPatience), invitation.secret});
  }

  // What failed before no longer explains anything.
  void note_reached(int rank) {
    Callee& callee = callees_[index(rank)];
    callee.is_reached = true;
    if (callee.failure.empty()) return;
    callee.failure.clear();
    store_.set(failure_key(identity_.rank, rank), {}, deadline_);
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
    try {
      return parse(store_.get(key(rank), deadline), rank);
    } catch (const Timeout&) {
      return std::nullopt;
    }
  }

  // The invitation of rank `rank` in `bytes`, if there are any.
  std::optional<Invitation> parse(const Bytes& bytes, int rank) const {
    if (bytes.empty()) return std::nullopt;
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

  // A new connection accepts this many bytes at once, unless it has ended.
  static bool send_hello(int socket, const Hello& hello) {
    return send_some(socket, std::as_bytes(std::span(&hello, 1))).bytes ==
           sizeof hello;
  }

  // Waits for sockets, and carries on with those that are ready.
  void hear_next() {
    std::vector<pollfd> items{{listener_.get(), POLLIN, 0}};
    Deadline next = std::min({deadline_, next_look_, first_report_});
    for (const Stranger& stranger : strangers_) {
      items.push_back({stranger.socket.get(), POLLIN, 0});
      next = std::min(next, stranger.deadline);
    }
    for (const Attempt& attempt : attempts_) {
      items.push_back({attempt.socket.get(), POLLOUT, 0});
      next = std::min(next, attempt.deadline);
    }
    for (const int rank : uncalled_)
      next = std::min(next, callees_[index(rank)].next);
    if (::poll(items.data(), items.size(), next.poll_milliseconds()) < 0 &&
        errno != EINTR)
      throw SystemError("could not poll the ranks' sockets", errno);
    if (deadline_.expired()) throw Timeout(describe_missing());
    check_peers();
    if (first_report_.expired()) {
      ask_for_pairs(missing_ranks());
      first_report_ = Deadline::never();
    }
    carry_on(items);
  }

  // `items` are the listener, then strangers_, then attempts_. Backwards,
  // because each step may remove its own entry and appends others.
  void carry_on(std::span<const pollfd> items) {
    const std::size_t strangers = strangers_.size();
    for (std::size_t i = attempts_.size(); i-- > 0;) {
      const short events = items[1 + strangers + i].revents;
      if (events == 0 && !attempts_[i].deadline.expired()) continue;
      Attempt ended = std::move(attempts_[i]);
      attempts_.erase(attempts_.begin() + static_cast<std::ptrdiff_t>(i));
      end_attempt(std::move(ended), events);
    }
    for (std::size_t i = strangers; i-- > 0;)
      if (items[1 + i].revents != 0 || strangers_[i].deadline.expired())
        hear(i);
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
      call_again(known.called, "the connection ended without an answer");
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
        mesh_.sockets[index(rank)])
      throw InvalidArgument(fmt::format(
          "group \"{}\" of {} ranks: a process joined as rank {}, which is "
          "taken or out of range\n  next:    give every process its own RANK, "
          "0 to {}",
          identity_.name, identity_.size, rank, identity_.size - 1));
    const auto r = index(rank);
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

  std::string name_of_rank(int rank) const {
    const std::string& host = mesh_.hosts[index(rank)];
    return identity_.describe(rank) + (host.empty() ? "" : " on " + host);
  }

  // That this rank cannot reach rank `rank`, whose invitation it has.
  std::string describe_failure(int rank) const {
    const Callee& callee = callees_[index(rank)];
    return fmt::format(
        "{} cannot connect to {} at {}: {}", name_of_rank(identity_.rank),
        name_of_rank(rank),
        host_and_port(callee.invitation.address.data(), callee.invitation.port),
        callee.failure.empty() ? "no answer" : callee.failure);
  }

  // How far the connection between this rank and rank `rank`, which is missing,
  // has come; nothing if that rank has not begun to form the group.
  std::optional<MissingPair> describe_pair(int rank, Deadline deadline) {
    if (rank < identity_.rank) {
      const Callee& callee = callees_[index(rank)];
      if (callee.invitation.port == 0) return std::nullopt;
      if (!callee.is_reached) return MissingPair{describe_failure(rank)};
      return MissingPair{
          .text = fmt::format("{} has connected to {}, which does not answer: "
                              "it is stopped or busy",
                              name_of_rank(identity_.rank), name_of_rank(rank)),
          .is_blocked = false};
    }
    const Bytes told =
        peek(store_, failure_key(rank, identity_.rank), deadline);
    if (!told.empty()) return MissingPair{to_text(told)};
    const auto invitation = parse(peek(store_, key(rank), deadline), rank);
    if (!invitation) return std::nullopt;
    mesh_.hosts[index(rank)] = invitation->host.data();
    return MissingPair{
        fmt::format("{} has not connected to {} at {}", name_of_rank(rank),
                    name_of_rank(identity_.rank),
                    host_and_port(mine_.address.data(), mine_.port))};
  }

  // Fills in pairs_.
  void ask_for_pairs(const std::vector<int>& missing) {
    try {
      const Deadline deadline(kReportTakes);
      for (const int rank : missing) {
        if (pairs_.size() == kMostPairs && !pairs_.contains(rank)) continue;
        if (auto pair = describe_pair(rank, deadline))
          pairs_[rank] = std::move(*pair);
      }
    } catch (const Error& unreachable) {
      log(LogLevel::kDebug, unreachable.what());
    }
  }

  std::vector<int> missing_ranks() const {
    std::vector<int> missing;
    for (int rank = 0; rank < identity_.size; ++rank)
      if (rank != identity_.rank && !mesh_.sockets[index(rank)])
        missing.push_back(rank);
    return missing;
  }

  std::string describe_missing() {
    const std::vector<int> missing = missing_ranks();
    ask_for_pairs(missing);
    std::vector<std::string> names;
    std::vector<MissingPair> pairs;
    for (const int rank : missing) {
      names.push_back(identity_.describe(rank));
      const auto pair = pairs_.find(rank);
      if (pair != pairs_.end()) pairs.push_back(pair->second);
    }
    std::string text = fmt::format(
        "group \"{}\" of {} ranks could not form over the network: timed out "
        "on rank {}, which listens at {}\n  missing: {}",
        identity_.name, identity_.size, identity_.rank,
        host_and_port(mine_.address.data(), mine_.port),
        fmt::join(names, ", "));
    for (const MissingPair& pair : pairs) text += "\n  network: " + pair.text;
    text +=
        std::ranges::none_of(pairs, &MissingPair::is_blocked)
            ? "\n  likely:  not started, dead, or the network between the "
              "hosts blocks the connection\n  next:    read the logs of the "
              "missing ranks; "
            : "\n  likely:  a firewall or a missing route between these "
              "hosts blocks the connection\n  next:    let every host "
              "connect to every other one, on any port; ";
    return text +
           "LOCKSTEP_INTERFACE names the interface to use; LOCKSTEP_LOG=debug "
           "says which one it is";
  }

  const GroupIdentity& identity_;
  Store& store_;
  const Deadline deadline_;
  Deadline first_report_;
  FileDescriptor listener_;
  Invitation mine_;
  Deadline next_look_{kStoreLook};
  std::vector<Stranger> strangers_;  // in the order of their arrival
  std::vector<Callee> callees_;      // by rank
  std::deque<int> uncalled_;         // the ranks that are to be called
  std::vector<Attempt> attempts_;
  // What is known about the connections to missing ranks, by rank.
  std::map<int, MissingPair> pairs_;
  Mesh mesh_;
  int missing_ = identity_.size - 1;
};

}  // namespace

Mesh connect_mesh(const GroupIdentity& identity, Store& store,
                  const std::string& address, Deadline deadline) {
  return Meeting(identity, store, address, deadline).run();
}

}  // namespace lockstep
