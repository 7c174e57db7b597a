#include "src/comm/shm/local_exchange.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <optional>

#include "lockstep/base/error.h"
#include "src/base/log.h"
#include "src/base/secret.h"
#include "src/comm/shm/control_block.h"
#include "src/comm/shm/exchange_messages.h"
#include "src/comm/shm/own_cores.h"
#include "src/net/process_handle.h"
#include "src/net/unix_socket.h"

namespace lockstep {
namespace {

// How often a waiting rank checks whether the store still exists and whether
// the group can still form.
constexpr std::chrono::milliseconds kStoreLook{500};

PeerFailure gone_while_forming(const GroupIdentity& identity, int rank) {
  return PeerFailure(
      rank,
      fmt::format("{} of group \"{}\" ended, or gave up, while the group was "
                  "forming\n  next:    read rank {}'s log",
                  identity.describe(rank), identity.name,
                  identity.rank_in_job(rank)));
}

// Why this process and its peer share no memory.
std::string describe_users(const GroupIdentity& identity, uid_t other) {
  return fmt::format(
      "{} of group \"{}\" runs as user {}, and a process that is to share its "
      "memory as user {}; in a job without a token only processes of one user "
      "share memory\n"
      "  next:    start all ranks as one user, or set LOCKSTEP_TOKEN to the "
      "same secret on every rank",
      identity.describe(identity.rank), identity.name, ::geteuid(), other);
}

std::string store_key(const GroupIdentity& identity) {
  return fmt::format("group/{}/shm/leader", identity.full_name());
}

// A connected process that has not identified itself yet: any user of this host
// may connect.
struct Guest {
  UnixConnection connection;
  Deadline deadline;
  std::optional<Challenges> challenges;  // once rank 0 has introduced itself
};
constexpr auto kGuestPatience = std::chrono::seconds(30);
// A further guest replaces the oldest.
constexpr std::size_t kMostGuests = 256;

// Rank 0's side.
class Leader {
 public:
  Leader(const GroupIdentity& identity, const LocalRank& own)
      : identity_(identity), own_(own), secret_(random_value<Secret>()) {
    const auto size = static_cast<std::size_t>(identity.size);
    connections_.resize(size);
    peers_.processes.resize(size);
    peers_.heaps.resize(size);
    cores_.resize(size);
    cores_[0] = cores_of_this_thread();
  }

  LocalPeers run(Store& store, Deadline deadline) {
    Bytes invitation(secret_.begin(), secret_.end());
    const Bytes name = to_bytes(listener_.name());
    invitation.insert(invitation.end(), name.begin(), name.end());
    store.set(store_key(identity_), invitation, deadline);
    try {
      while (missing_ > 0) welcome_next(store, deadline);
      bring_own();
      // A later group of this name must not find this one's invitation.
      store.erase(store_key(identity_), deadline);
      // Before any answer: a rank that has all its answers gets no failure
      // message.
      for (int rank = 1; rank < identity_.size; ++rank) check_presence(rank);
      for (int rank = 1; rank < identity_.size; ++rank)
        send_answers(rank, deadline);
    } catch (const Error& error) {
      tell_failure(error);
      take_back_invitation(store);
      throw;
    }
    return std::move(peers_);
  }

 private:
  // Calls that the kernel may refuse, once all ranks are connected and can be
  // told: a rank that never sees an invitation would wait as if rank 0 were
  // only late.
  void bring_own() {
    peers_.control = create_growing_memory(
        "lockstep group", ControlView::bytes_for(identity_.size));
    peers_.processes[0] = open_own_process();
    peers_.each_has_a_core = each_has_a_core(cores_);
    if (own_.heap == nullptr) return;
    peers_.heaps[0] = FileDescriptor(
        ::fcntl(own_.heap->descriptor().get(), F_DUPFD_CLOEXEC, 0));
    if (!peers_.heaps[0])
      throw SystemError("could not copy the heap's descriptor", errno);
  }

  void welcome_next(Store& store, Deadline deadline) {
    std::vector<pollfd> items{{listener_.descriptor(), POLLIN, 0}};
    Deadline next = std::min(deadline, next_look_);
    for (const Guest& guest : guests_) {
      items.push_back({guest.connection.descriptor(), POLLIN, 0});
      next = std::min(next, guest.deadline);
    }
    if (::poll(items.data(), items.size(), next.poll_milliseconds()) < 0 &&
        errno != EINTR)
      throw SystemError("could not poll the ranks' sockets", errno);
    if (deadline.expired()) throw Timeout(describe_missing());
    // The missing ranks need the store: without it none can come.
    if (next_look_.expired()) {
      store.wait_any(std::array{store_key(identity_)}, deadline);
      next_look_ = Deadline(kStoreLook);
    }
    for (std::size_t i = items.size(); i-- > 1;)
      if (items[i].revents != 0) hear_guest(i - 1, deadline);
    std::erase_if(guests_,
                  [](const Guest& guest) { return guest.deadline.expired(); });
    if (items[0].revents != 0) accept_guest();
  }

  // The oldest guest makes room for a new one: it has had the most time.
  void accept_guest() {
    try {
      if (FileDescriptor accepted = listener_.accept())
        let_in(UnixConnection(std::move(accepted)));
    } catch (const SystemError&) {  // the process is out of descriptors
      if (guests_.empty()) throw;
      guests_.erase(guests_.begin());
    }
    if (guests_.size() > kMostGuests) guests_.erase(guests_.begin());
  }

  void let_in(UnixConnection guest) {
    if (own_.others == OtherUsers::kAdmitted || guest.is_of_own_user())
      guests_.push_back({std::move(guest), Deadline(kGuestPatience), {}});
    else
      turn_away(std::move(guest));
  }

  void turn_away(UnixConnection guest) const try {
    const std::string why = describe_users(identity_, guest.peer_user());
    log(LogLevel::kWarn, "turned a process away: " + why);
    guest.send(failure_message({.ending = Ending::kRefused}, why), {},
               std::chrono::milliseconds(0));
  } catch (const Error&) {
    // The guest need not listen.
  }

  // A guest has sent a message or disconnected. A process that does not know
  // the secret is not a rank of this group, so its errors do not count.
  void hear_guest(std::size_t index, Deadline deadline) {
    Guest guest = std::move(guests_[index]);
    guests_.erase(guests_.begin() + static_cast<std::ptrdiff_t>(index));
    UnixConnection::Message message;
    try {
      message = guest.connection.receive(deadline);
    } catch (const NetworkError&) {
      return;
    }
    if (!guest.challenges) {
      const auto greeting = read_message<ExchangeGreeting>(message.bytes);
      if (greeting && greeting->version == kExchangeVersion)
        introduce(std::move(guest), greeting->challenge);
      return;
    }
    const auto hello = read_message<ExchangeHello>(message.bytes);
    if (hello && hello->version == kExchangeVersion &&
        equal_in_constant_time(
            hello->proof, prove(secret_, Prover::kClient, *guest.challenges)))
      admit(*hello, std::move(guest.connection),
            std::move(message.descriptors));
  }

  // Proves to a guest that this is rank 0 before the guest has to prove
  // anything.
  void introduce(Guest guest, const Challenge& challenge) try {
    const Challenges challenges{.client = challenge,
                                .server = random_value<Challenge>()};
    const ExchangeIntroduction introduction{
        .challenge = challenges.server,
        .proof = prove(secret_, Prover::kServer, challenges)};
    guest.connection.send(bytes_of(introduction), {},
                          std::chrono::milliseconds(0));
    guest.challenges = challenges;
    guests_.push_back(std::move(guest));
  } catch (const Error&) {
    // The guest is gone.
  }

  void admit(const ExchangeHello& hello, UnixConnection connection,
             std::vector<FileDescriptor> descriptors) {
    const int rank = hello.rank;
    const auto r = static_cast<std::size_t>(rank);
    if (rank < 1 || rank >= identity_.size || peers_.processes[r])
      throw InvalidArgument(fmt::format(
          "group \"{}\" of {} ranks: a process joined as rank {}{}\n"
          "  next:    give every process its own RANK, 0 to {}",
          identity_.name, identity_.size, rank,
          rank < 1 || rank >= identity_.size ? "" : ", which is taken",
          identity_.size - 1));
    if (descriptors.empty())
      throw NetworkError(fmt::format("rank {} came without its pidfd", rank));
    peers_.processes[r] = std::move(descriptors[0]);
    if (descriptors.size() > 1) peers_.heaps[r] = std::move(descriptors[1]);
    connections_[r] = std::move(connection);
    cores_[r] = hello.cores;
    --missing_;
  }

  UnixConnection& connection_to(int rank) {
    return connections_[static_cast<std::size_t>(rank)];
  }

  // A rank that waits for answers sends nothing: readable means disconnected.
  void check_presence(int rank) {
    pollfd item{connection_to(rank).descriptor(), POLLIN, 0};
    if (::poll(&item, 1, 0) > 0) throw gone_while_forming(identity_, rank);
  }

  void send_answers(int to, Deadline deadline) try {
    UnixConnection& connection = connection_to(to);
    for (int rank = 0; rank < identity_.size; ++rank) {
      const auto r = static_cast<std::size_t>(rank);
      std::vector<int> descriptors{peers_.processes[r].get()};
      const bool has_heap = static_cast<bool>(peers_.heaps[r]);
      if (has_heap) descriptors.push_back(peers_.heaps[r].get());
      if (rank == 0) descriptors.push_back(peers_.control.get());
      const ExchangeAnswer answer{.rank = rank,
                                  .has_heap = has_heap,
                                  .each_has_a_core = peers_.each_has_a_core};
      connection.send(bytes_of(answer), descriptors, deadline);
    }
  } catch (const NetworkError&) {
    throw gone_while_forming(identity_, to);
  }

  std::string describe_missing() const {
    std::vector<std::string> ranks;
    for (int rank = 1; rank < identity_.size; ++rank)
      if (!peers_.processes[static_cast<std::size_t>(rank)])
        ranks.push_back(identity_.describe(rank));
    return fmt::format(
        "group \"{}\" of {} ranks could not form on shared memory: timed out\n"
        "  missing: {}\n"
        "  likely:  not started, dead, or on another host\n"
        "  next:    read the logs of the missing ranks; check that WORLD_SIZE "
        "is the number of processes started",
        identity_.name, identity_.size, fmt::join(ranks, ", "));
  }

  // Best effort: a rank that gets no message will time out.
  void tell_failure(const Error& why) {
    const ExchangeAnswer answer = answer_of(why);
    std::string what = why.what();
    if (answer.ending == Ending::kGaveUp)
      what = fmt::format("{} gave up while the group was forming: {}",
                         identity_.describe(0), what);
    const Bytes text = failure_message(answer, what);
    for (UnixConnection& connection : connections_) try {
        if (connection.descriptor() >= 0)
          connection.send(text, {}, std::chrono::seconds(1));
      } catch (const Error&) {
        continue;
      }
  }

  // The error that ends the group is the one to report.
  void take_back_invitation(Store& store) try {
    store.erase(store_key(identity_), std::chrono::seconds(5));
  } catch (const Error& error) {
    log(LogLevel::kDebug, error.what());
  }

  const GroupIdentity& identity_;
  const LocalRank own_;
  Secret secret_;
  Deadline next_look_{kStoreLook};
  UnixListener listener_;
  std::vector<Guest> guests_;  // in the order of their arrival
  std::vector<UnixConnection> connections_;
  std::vector<cpu_set_t> cores_;  // that each rank may run on
  LocalPeers peers_;
  int missing_ = identity_.size - 1;
};

// Receives rank 0's invitation, and turns a timeout into the user's error.
std::pair<Secret, std::string> receive_invitation(const GroupIdentity& identity,
                                                  Store& store,
                                                  Deadline deadline) {
  Bytes invitation;
  try {
    invitation = store.get(store_key(identity), deadline);
  } catch (const Timeout&) {
    throw Timeout(fmt::format(
        "group \"{}\" of {} ranks could not form on rank {}: timed out\n"
        "  missing: {}\n  likely:  not started, or dead\n"
        "  next:    read rank {}'s log",
        identity.name, identity.size, identity.rank, identity.describe(0),
        identity.rank_in_job(0)));
  }
  Secret secret;
  LOCKSTEP_CHECK(invitation.size() > secret.size(), "short invitation");
  std::memcpy(secret.data(), invitation.data(), secret.size());
  return {secret, to_text(std::span(invitation).subspan(secret.size()))};
}

UnixConnection connect_to_leader(const GroupIdentity& identity,
                                 const std::string& name, Deadline deadline) {
  try {
    return connect_unix(name, deadline);
  } catch (const NetworkError& error) {
    throw NetworkError(fmt::format(
        "rank {} cannot reach {} of group \"{}\" on this host: {}\n"
        "  likely:  the ranks are on different hosts, or that one has ended\n"
        "  next:    the backend \"shm\" works within one host; start all ranks "
        "on the same one",
        identity.rank, identity.describe(0), identity.name, error.what()));
  }
}

void take_answer(UnixConnection::Message message, LocalPeers& peers) {
  ExchangeAnswer answer;
  LOCKSTEP_CHECK(message.bytes.size() >= sizeof answer, "short answer");
  std::memcpy(&answer, message.bytes.data(), sizeof answer);
  if (answer.ending != Ending::kFormed)
    throw_failure(answer,
                  to_text(std::span(message.bytes).subspan(sizeof answer)));
  const auto r = static_cast<std::size_t>(answer.rank);
  peers.each_has_a_core = answer.each_has_a_core != 0;
  auto next = message.descriptors.begin();
  LOCKSTEP_CHECK(message.descriptors.size() ==
                     1 + answer.has_heap + (answer.rank == 0 ? 1 : 0),
                 "an answer lacks descriptors");
  peers.processes.at(r) = std::move(*next++);
  if (answer.has_heap != 0) peers.heaps.at(r) = std::move(*next++);
  if (answer.rank == 0) peers.control = std::move(*next++);
}

// Makes the proof that identifies this rank to rank 0, once rank 0 has proved
// that it wrote the invitation. Its socket's name is no proof: when rank 0 has
// ended, any user of the host may listen there.
Proof meet(const Secret& secret, const LocalRank& own, UnixConnection& leader,
           Deadline deadline) {
  Challenges challenges{.client = random_value<Challenge>()};
  leader.send(bytes_of(ExchangeGreeting{.challenge = challenges.client}), {},
              deadline);
  UnixConnection::Message message = leader.receive(deadline);
  const auto introduction = read_message<ExchangeIntroduction>(message.bytes);
  if (introduction) {
    challenges.server = introduction->challenge;
    if (equal_in_constant_time(introduction->proof,
                               prove(secret, Prover::kServer, challenges)))
      return prove(secret, Prover::kClient, challenges);
  } else if (own.others == OtherUsers::kTurnedAway) {
    // The peer is a process of this user, which may have refused this one.
    LocalPeers none;
    take_answer(std::move(message), none);
  }
  throw NetworkError("another process has taken the name of rank 0's socket");
}

LocalPeers follow(const GroupIdentity& identity, Store& store,
                  const LocalRank& own, Deadline deadline) {
  const auto [secret, name] = receive_invitation(identity, store, deadline);
  UnixConnection leader = connect_to_leader(identity, name, deadline);
  if (own.others == OtherUsers::kTurnedAway && !leader.is_of_own_user())
    throw InvalidArgument(describe_users(identity, leader.peer_user()));
  const FileDescriptor self = open_own_process();
  std::vector<int> descriptors{self.get()};
  if (own.heap != nullptr) descriptors.push_back(own.heap->descriptor().get());

  LocalPeers peers;
  peers.processes.resize(static_cast<std::size_t>(identity.size));
  peers.heaps.resize(static_cast<std::size_t>(identity.size));
  // Rank 0 has the same deadline and knows the missing ranks: let it report
  // first.
  const Deadline patient =
      deadline.is_never() ? deadline
                          : Deadline(deadline.when() + std::chrono::seconds(2));
  try {
    const ExchangeHello hello{.rank = identity.rank,
                              .proof = meet(secret, own, leader, patient)};
    leader.send(bytes_of(hello), descriptors, deadline);
    for (int rank = 0; rank < identity.size; ++rank)
      take_answer(leader.receive(patient), peers);
  } catch (const NetworkError&) {
    throw gone_while_forming(identity, 0);
  }
  return peers;
}

}  // namespace

LocalPeers exchange_local(const GroupIdentity& identity, Store& store,
                          const LocalRank& own, Deadline deadline) {
  if (identity.rank == 0) return Leader(identity, own).run(store, deadline);
  return follow(identity, store, own, deadline);
}

}  // namespace lockstep
