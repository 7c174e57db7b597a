#include "src/comm/wire/mesh.h"

#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <exception>
#include <list>
#include <map>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "src/base/log.h"
#include "src/base/mutex.h"
#include "src/base/secret.h"
#include "src/base/signals_blocked.h"
#include "src/comm/rendezvous/formation.h"
#include "src/comm/rendezvous/store_all_gather.h"
#include "src/net/poll_set.h"
#include "src/net/socket.h"
#include "src/net/socket_address.h"
#include "src/net/wait.h"
#include "src/net/wake_up.h"
#include "src/store/host_address.h"
#include "src/store/peek.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;

constexpr std::uint32_t kProtocolVersion = 2;
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
// How often a waiting rank checks whether the store still exists and whether
// the group can still form.
constexpr auto kStoreLook = 500ms;
// How long a stranger may take to identify itself.
constexpr auto kHelloPatience = 30s;
// The most strangers that may be doing so; a further one replaces the oldest.
constexpr std::size_t kMostStrangers = 256;
// How long sent bytes may stay unacknowledged by the peer's kernel.
constexpr auto kUnanswered = 15s;
// How long a rank without descriptors leaves calls unanswered.
constexpr auto kShortage = 500ms;

// What a rank tells the others. Plain bytes: both ends are the same build.
struct Card {
  std::uint32_t version = kProtocolVersion;
  std::int32_t port = 0;
  std::uint64_t nonce = 0;
  Secret secret{};
  std::array<char, 64> address{};
  std::array<char, 64> host{};
};

// What this rank keeps of another one's card.
struct Invitation {
  int port = 0;
  Secret secret{};
  std::string address{};
};

// The greeting of the calling rank, and the answer.
struct Hello {
  std::array<char, 8> magic{'l', 'o', 'c', 'k', 'w', 'i', 'r', 'e'};
  std::uint32_t version = kProtocolVersion;
  std::int32_t rank = 0;
  Secret yours{};  // the called rank's
  Secret mine{};
};

template <std::size_t size>
void copy_text(std::array<char, size>& to, const std::string& from) {
  std::memcpy(to.data(), from.data(), std::min(from.size(), size - 1));
}

// Reads as much of a Hello as has arrived.
struct Listening {
  Hello hello{};
  std::size_t heard = 0;

  bool is_complete() const { return heard == sizeof hello; }

  // Returns false if the connection has ended.
  bool read(const FileDescriptor& socket) {
    const auto room =
        std::as_writable_bytes(std::span(&hello, 1)).subspan(heard);
    const Transfer received = receive_some(socket.get(), room);
    heard += received.bytes;
    return is_complete() || !received.ended;
  }
};

// A new connection accepts this many bytes at once, unless it has ended.
bool send_hello(const FileDescriptor& socket, const Hello& hello) {
  return send_some(socket.get(), std::as_bytes(std::span(&hello, 1))).bytes ==
         sizeof hello;
}

void end_when_silent(const FileDescriptor& socket) {
  const int milliseconds =
      static_cast<int>(std::chrono::milliseconds(kUnanswered).count());
  ::setsockopt(socket.get(), IPPROTO_TCP, TCP_USER_TIMEOUT, &milliseconds,
               sizeof milliseconds);
}

// A connected process that has not proved its identity yet.
struct Stranger {
  FileDescriptor socket;
  Deadline deadline{kHelloPatience};
  Listening listening{};
};

// This rank's attempts to connect to another rank.
struct Call {
  enum class State { kPausing, kConnecting, kGreeted };
  State state = State::kPausing;
  FileDescriptor socket{};
  Deadline until{0s};  // the end of the pause, or of the attempt
  std::chrono::milliseconds pause = kFirstPause;
  // Once the group has formed. Time in which the called rank may be stopped or
  // busy does not count.
  Deadline give_up = Deadline::never();
  Deadline::Clock::time_point greeted{};
  std::string failure{};  // the last one
  Listening answer{};
};

// Why an attempt failed.
struct CallFailure {
  int error = 0;  // errno
  std::string text{};
  Mesh::Cause cause = Mesh::Cause::kPeer;
};

// Whether it means a lack of ports or memory here.
bool is_own_shortage(int error) {
  return error == EADDRNOTAVAIL || error == ENOBUFS || error == ENOMEM;
}

// What is known of a connection that is missing.
struct MissingPair {
  std::string text;
  bool is_blocked = true;
  bool is_known = true;  // why it is missing
};

// Shortly before `deadline`.
Deadline before(Deadline deadline) {
  if (deadline.is_never()) return deadline;
  return Deadline(deadline.when() -
                  std::min<Deadline::Clock::duration>(deadline.remaining() / 4,
                                                      kReportTakes));
}

Card parse(const std::string& text, const GroupIdentity& identity, int rank) {
  Card card;
  if (text.size() != sizeof card)
    throw NetworkError(fmt::format(
        "group \"{}\": {} speaks another version of the wire protocol\n"
        "  next:    start every rank with the same build of Lockstep",
        identity.name, identity.describe(rank)));
  std::memcpy(&card, text.data(), sizeof card);
  card.address.back() = card.host.back() = '\0';
  return card;
}

}  // namespace

class Mesh::Meeting {
 public:
  Meeting(const GroupIdentity& identity, const std::string& address)
      : identity_(identity), listener_(listen_at(address, 0)) {
    mine_.port = local_address(listener_.get()).port();
    mine_.secret = random_value<Secret>();
    mine_.nonce = random_value<std::uint64_t>();
    copy_text(mine_.address, address);
    copy_text(mine_.host, own_host_name());
    sockets_.resize(index(identity.size));
    is_connected_.resize(index(identity.size));
  }

  // Of two ranks the higher one calls.
  void form(Store& store, const std::vector<int>& first, Deadline deadline) {
    store_ = &store;
    deadline_ = deadline;
    first_report_ = before(deadline);
    read_cards(store_all_gather(
        identity_, "wire",
        std::string(reinterpret_cast<const char*>(&mine_), sizeof mine_), store,
        {deadline}));
    awaited_.insert(first.begin(), first.end());
    for (const int rank : first)
      if (rank < identity_.rank) calls_.try_emplace(rank);
    next_look_ = Deadline(kStoreLook);
    while (!awaited_.empty()) {
      turn();
      if (awaited_.empty()) break;
      if (deadline_.expired()) throw Timeout(describe_missing());
      check_peers();
      report_early();
    }
    store_ = nullptr;
    deadline_ = next_look_ = first_report_ = Deadline::never();
  }

  const std::vector<std::string>& hosts() const { return hosts_; }
  std::string nonce() const { return fmt::format("{:x}", nonce_); }
  std::vector<FileDescriptor> take_sockets() { return std::move(sockets_); }

  void serve(Events events) {
    events_ = std::move(events);
    if (std::ranges::count(is_connected_, true) == identity_.size - 1) {
      listener_ = {};
      return;
    }
    const SignalsBlocked blocked;
    thread_ = std::thread([this] { run(); });
  }

  void call(int rank) {
    const MutexLock lock(mutex_);
    asked_.push_back(rank);
    wake_.signal();
  }

  void stop() noexcept {
    stopping_ = true;
    wake_.signal();
    const MutexLock one(stop_mutex_);
    if (thread_.joinable()) thread_.join();
    // Ranks that wait for an answer see that this one has left.
    listener_ = {};
    strangers_.clear();
    calls_.clear();
  }

 private:
  static std::size_t index(int rank) { return static_cast<std::size_t>(rank); }
  bool has_formed() const { return store_ == nullptr; }
  // That of a rank's card.
  std::string key(int rank) const {
    return fmt::format("group/{}/wire/{}", identity_.full_name(), rank);
  }
  // The sentence with which rank `from` says that it cannot reach rank `to`.
  std::string failure_key(int from, int to) const {
    return fmt::format("group/{}/wire/{}/fails/{}", identity_.full_name(), from,
                       to);
  }

  void read_cards(const std::vector<std::string>& cards) {
    for (int rank = 0; rank < identity_.size; ++rank) {
      const Card card = parse(cards[index(rank)], identity_, rank);
      invitations_.push_back({card.port, card.secret, card.address.data()});
      hosts_.emplace_back(card.host.data());
      if (rank == 0) nonce_ = card.nonce;
    }
  }

  void run() {
    std::string failure;
    try {
      for (take_asked(); !stopping_; take_asked()) turn();
      return;
    } catch (const std::exception& error) {
      failure = fmt::format("group \"{}\" connects no further ranks: {}",
                            identity_.name, error.what());
    }
    log(LogLevel::kWarn, failure);
    // Ranks that call this one see that it does not answer.
    listener_ = {};
    strangers_.clear();
    while (!stopping_) refuse_calls(failure);
  }

  void refuse_calls(const std::string& failure) noexcept try {
    take_asked();
    while (!calls_.empty())
      give_up(calls_.begin()->first, Cause::kThisRank, failure);
    wait_for(wake_.descriptor(), POLLIN, Deadline::never());
  } catch (const std::exception&) {
    // Such as a lack of memory, which may pass.
    std::this_thread::sleep_for(kShortage);
  }

  void take_asked() {
    std::vector<int> asked;
    {
      const MutexLock lock(mutex_);
      asked.swap(asked_);
      wake_.reset();
    }
    for (const int rank : asked)
      if (!is_connected_[index(rank)]) calls_.try_emplace(rank);
  }

  // Begins the calls whose pause has ended, waits for sockets, and carries on
  // with those that are ready.
  void turn() {
    begin_calls();
    PollSet set;
    Deadline next = std::min({deadline_, next_look_, first_report_});
    set.watch(wake_.descriptor(), POLLIN, [] {});
    // An action may remove its own stranger, and any call.
    for (auto stranger = strangers_.begin(); stranger != strangers_.end();
         ++stranger) {
      set.watch(stranger->socket.get(), POLLIN,
                [this, stranger] { hear(stranger); });
      next = std::min(next, stranger->deadline);
    }
    for (auto& [rank, call] : calls_) {
      const short event =
          call.state == Call::State::kConnecting ? POLLOUT : POLLIN;
      set.watch(call.socket.get(), event,
                [this, called = rank] { carry_on(called); });
      next = std::min(next, call.until);
    }
    if (shortage_.expired())
      set.watch(listener_.get(), POLLIN, [this] { accept_next(); });
    else
      next = std::min(next, shortage_);
    set.wait(next);
    drop_expired();
  }

  void drop_expired() {
    std::erase_if(strangers_,
                  [](const Stranger& each) { return each.deadline.expired(); });
    std::vector<int> late;
    for (const auto& [rank, call] : calls_)
      if (call.state == Call::State::kConnecting && call.until.expired())
        late.push_back(rank);
    for (const int rank : late) call_again(rank, {ETIMEDOUT, "no answer"});
  }

  void begin_calls() {
    std::vector<int> due;
    for (const auto& [rank, call] : calls_)
      if (call.state == Call::State::kPausing && call.until.expired())
        due.push_back(rank);
    for (const int rank : due) begin_call(rank);
  }

  void begin_call(int rank) try {
    Deadline& give_up = calls_.at(rank).give_up;
    if (has_formed() && give_up.is_never())
      give_up = Deadline(events_.patience);
    const Invitation& invitation = invitations_[index(rank)];
    BegunConnection begun =
        begin_to_connect(invitation.address, invitation.port);
    if (!begun.socket)
      return call_again(rank, {begun.error, std::strerror(begun.error),
                               is_own_shortage(begun.error) ? Cause::kThisRank
                                                            : Cause::kPeer});
    Call& call = calls_.at(rank);
    call.state = Call::State::kConnecting;
    call.socket = std::move(begun.socket);
    call.until = Deadline(kAttemptPatience);
  } catch (const SystemError& shortage) {
    if (!has_formed()) throw;
    call_again(rank, {EMFILE, shortage.what(), Cause::kThisRank});
  }

  // A rank whose address refuses connections has left, once the group has
  // formed.
  void call_again(int rank, const CallFailure& failure) {
    Call& call = calls_.at(rank);
    if (call.state == Call::State::kGreeted && !call.give_up.is_never())
      call.give_up = Deadline(call.give_up.when() +
                              (Deadline::Clock::now() - call.greeted));
    call.socket = {};
    call.state = Call::State::kPausing;
    call.until = Deadline(call.pause);
    call.pause =
        std::min<std::chrono::milliseconds>(2 * call.pause, kLongestPause);
    if (has_formed()) {
      if (failure.error == ECONNREFUSED || call.give_up.expired())
        give_up(rank, failure.cause, describe_failure(rank, failure.text));
      return;
    }
    if (std::exchange(call.failure, failure.text) == failure.text) return;
    const std::string sentence = describe_failure(rank, failure.text);
    log(LogLevel::kDebug, sentence);
    store_->set(failure_key(identity_.rank, rank), to_bytes(sentence),
                deadline_);
  }

  // For good: a later call of that rank is refused.
  void give_up(int rank, Cause cause, const std::string& why) {
    calls_.erase(rank);
    is_connected_[index(rank)] = true;
    events_.unreachable(rank, cause, why);
  }

  // A socket of the call of `rank` is ready, unless the call has ended.
  void carry_on(int rank) {
    const auto found = calls_.find(rank);
    if (found == calls_.end()) return;
    if (found->second.state == Call::State::kConnecting)
      greet(rank, found->second);
    else if (found->second.state == Call::State::kGreeted)
      hear_answer(rank, found->second);
  }

  void greet(int rank, Call& call) {
    if (const int error = connect_error(call.socket.get()))
      return call_again(rank, {error, std::strerror(error)});
    end_when_silent(call.socket);
    if (!send_hello(call.socket, {.rank = identity_.rank,
                                  .yours = invitations_[index(rank)].secret,
                                  .mine = mine_.secret}))
      return call_again(rank, {ECONNRESET, "the connection ended"});
    // It may be busy: the call lasts until it answers or its host is silent.
    call.state = Call::State::kGreeted;
    call.until = Deadline::never();
    call.greeted = Deadline::Clock::now();
    call.answer = {};
    // What failed before no longer explains anything.
    if (!has_formed() && !std::exchange(call.failure, "").empty())
      store_->set(failure_key(identity_.rank, rank), {}, deadline_);
  }

  void hear_answer(int rank, Call& call) {
    const bool goes_on = call.answer.read(call.socket);
    if (call.answer.is_complete() && is_ours(call.answer.hello) &&
        call.answer.hello.rank == rank) {
      FileDescriptor socket = std::move(call.socket);
      return connected(rank, std::move(socket));
    }
    if (!goes_on || call.answer.is_complete())
      call_again(rank, {ECONNRESET, "the connection ended without an answer"});
  }

  // Throws if the store is gone, which missing ranks need, or if a missing rank
  // has ended.
  void check_peers() {
    if (!next_look_.expired()) return;
    store_->wait_any(std::array{key(identity_.rank)}, deadline_);
    next_look_ = Deadline(kStoreLook);
  }

  void report_early() {
    if (!first_report_.expired()) return;
    ask_for_pairs();
    first_report_ = Deadline(kStoreLook);
  }

  // The oldest stranger makes room for a new one: it has had the most time.
  void accept_next() {
    try {
      if (FileDescriptor accepted = accept_from(listener_.get()))
        strangers_.push_back({std::move(accepted)});
    } catch (const SystemError&) {  // the process is out of descriptors
      if (strangers_.empty() && !has_formed()) throw;
      if (strangers_.empty()) shortage_ = Deadline(kShortage);
      if (!strangers_.empty()) strangers_.pop_front();
    }
    if (strangers_.size() > kMostStrangers) strangers_.pop_front();
  }

  void hear(std::list<Stranger>::iterator stranger) {
    const bool goes_on = stranger->listening.read(stranger->socket);
    const bool complete = stranger->listening.is_complete();
    if (goes_on && !complete) return;
    Stranger known = std::move(*stranger);
    strangers_.erase(stranger);
    if (complete && is_ours(known.listening.hello)) admit(std::move(known));
  }

  bool is_ours(const Hello& hello) const {
    return hello.magic == Hello{}.magic && hello.version == kProtocolVersion &&
           equal_in_constant_time(hello.yours, mine_.secret);
  }

  void admit(Stranger peer) {
    const int rank = peer.listening.hello.rank;
    const bool is_free = rank >= 0 && rank < identity_.size &&
                         rank != identity_.rank && !is_connected_[index(rank)];
    if (!is_free && !has_formed()) refuse_rank(rank);
    if (!is_free) return;  // this rank's own call has counted
    // Two ranks call each other.
    const auto own = calls_.find(rank);
    if (own != calls_.end() && own->second.state == Call::State::kGreeted &&
        identity_.rank < rank)
      return;
    end_when_silent(peer.socket);
    send_hello(peer.socket, {.rank = identity_.rank,
                             .yours = peer.listening.hello.mine,
                             .mine = {}});
    connected(rank, std::move(peer.socket));
  }

  [[noreturn]] void refuse_rank(int rank) const {
    throw InvalidArgument(fmt::format(
        "group \"{}\" of {} ranks: a process joined as rank {}, which is taken "
        "or out of range\n  next:    give every process its own RANK, 0 to {}",
        identity_.name, identity_.size, rank, identity_.size - 1));
  }

  void connected(int rank, FileDescriptor socket) {
    calls_.erase(rank);
    awaited_.erase(rank);
    is_connected_[index(rank)] = true;
    if (!has_formed()) {
      sockets_[index(rank)] = std::move(socket);
      return;
    }
    try {
      events_.connected(rank, std::move(socket));
    } catch (const std::exception& error) {
      events_.unreachable(rank, Cause::kThisRank, error.what());
      throw;
    }
  }

  std::string name_of_rank(int rank) const {
    return fmt::format("{} on {}", identity_.describe(rank),
                       hosts_[index(rank)]);
  }

  std::string describe_failure(int rank, const std::string& failure) const {
    const Invitation& invitation = invitations_[index(rank)];
    return fmt::format("{} cannot connect to {} at {}: {}",
                       name_of_rank(identity_.rank), name_of_rank(rank),
                       host_and_port(invitation.address, invitation.port),
                       failure.empty() ? "no answer" : failure);
  }

  // How far the connection between this rank and rank `rank`, which is missing,
  // has come.
  MissingPair describe_pair(int rank, Deadline deadline) {
    if (rank < identity_.rank) {
      const Call& call = calls_.at(rank);
      if (call.state != Call::State::kGreeted)
        return {describe_failure(rank, call.failure)};
      return {
          .text = fmt::format("{} has connected to {}, which does not "
                              "answer: it is stopped or busy",
                              name_of_rank(identity_.rank), name_of_rank(rank)),
          .is_blocked = false};
    }
    const Bytes told =
        peek(*store_, failure_key(rank, identity_.rank), deadline);
    if (!told.empty()) return {to_text(told)};
    return {
        .text = fmt::format("{} has not connected to {} at {}",
                            name_of_rank(rank), name_of_rank(identity_.rank),
                            host_and_port(mine_.address.data(), mine_.port)),
        .is_known = false};
  }

  // Fills in pairs_.
  void ask_for_pairs() {
    try {
      const Deadline deadline(kReportTakes);
      for (const int rank : awaited_)
        if (pairs_.size() < kMostPairs || pairs_.contains(rank)) {
          MissingPair pair = describe_pair(rank, deadline);
          // A rank that has given up has erased what it had written.
          if (pair.is_known || !pairs_.contains(rank))
            pairs_[rank] = std::move(pair);
        }
    } catch (const Error& unreachable) {
      log(LogLevel::kDebug, unreachable.what());
    }
  }

  std::string describe_missing() {
    ask_for_pairs();
    std::vector<std::string> names;
    std::vector<MissingPair> pairs;
    for (const int rank : awaited_) {
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
            ? "\n  likely:  dead or stopped\n  next:    read the logs of the "
              "missing ranks; "
            : "\n  likely:  a firewall or a missing route between these "
              "hosts blocks the connection\n  next:    let every host "
              "connect to every other one, on any port; ";
    return text +
           "LOCKSTEP_INTERFACE names the interface to use; LOCKSTEP_LOG=debug "
           "says which one it is";
  }

  const GroupIdentity identity_;
  FileDescriptor listener_;
  Card mine_;
  std::vector<Invitation> invitations_;  // by rank
  std::vector<std::string> hosts_;       // by rank
  std::uint64_t nonce_ = 0;              // of rank 0
  // Until the group has formed.
  Store* store_ = nullptr;
  Deadline deadline_ = Deadline::never();
  Deadline first_report_ = Deadline::never();
  Deadline next_look_ = Deadline::never();
  std::set<int> awaited_;
  // What is known about the connections to missing ranks, by rank.
  std::map<int, MissingPair> pairs_;

  std::list<Stranger> strangers_;  // in the order of their arrival
  std::map<int, Call> calls_;      // by rank
  std::vector<FileDescriptor> sockets_;
  std::vector<bool> is_connected_;
  Deadline shortage_{0s};

  Events events_;
  WakeUp wake_;
  std::atomic<bool> stopping_{false};
  Mutex stop_mutex_;
  Mutex mutex_;
  std::vector<int> asked_ LOCKSTEP_GUARDED_BY(mutex_);
  std::thread thread_;
};

Mesh::Mesh(const GroupIdentity& identity, Store& store,
           const std::string& address, const std::vector<int>& first,
           Deadline deadline)
    : meeting_(std::make_unique<Meeting>(identity, address)) {
  meeting_->form(store, first, deadline);
}

Mesh::~Mesh() { stop(); }

const std::vector<std::string>& Mesh::hosts() const {
  return meeting_->hosts();
}
std::string Mesh::nonce() const { return meeting_->nonce(); }
std::vector<FileDescriptor> Mesh::take_sockets() {
  return meeting_->take_sockets();
}
void Mesh::serve(Events events) { meeting_->serve(std::move(events)); }
void Mesh::call(int rank) { meeting_->call(rank); }
void Mesh::stop() noexcept { meeting_->stop(); }

}  // namespace lockstep
