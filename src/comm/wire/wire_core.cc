#include "src/comm/wire/wire_core.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <span>

#include "src/base/exit_status.h"
#include "src/comm/operation/operation_text.h"
#include "src/comm/operation/peer_checks.h"
#include "src/comm/rendezvous/formation.h"
#include "src/net/wait.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using std::chrono::microseconds;

// The parts of GroupFault::kStorePatience.
//
// For publishing which ranks this rank waits for.
constexpr auto kPublishes = 500ms;
// Ranks that wait for the same rank give up at about the same time: this is how
// long a rank waits for what the others publish.
constexpr auto kOthersGiveUp = 1s;
// The same for ranks that end because another one gave up. They see that within
// kStoreCheckInterval.
constexpr auto kOthersEnd = 500ms;

// How long a rank that gives up keeps its connections for the abort notices of
// the others. They read its notice within kStoreCheckInterval, if they run.
// With the rank that died the store may have ended, so that a rank that missed
// the notice would blame the rank that gave up.
constexpr auto kBriefly = 100ms;
constexpr auto kUntilAllHaveHeard = 1s;

// The same for a rank that leaves and its goodbye. A transport may send nothing
// to a rank that does not listen yet, and a rank that was connected a moment
// ago does not. A rank that misses the goodbye holds this one for dead.
constexpr auto kGoodbyePatience = 2s;

// A rank of another host may complete the collective and end in good order
// while the message of its host's first rank is still on its way. Only a wait
// that goes on for longer is in vain.
constexpr auto kPartArrives = 2s;

Deadline earlier(Deadline limit, std::chrono::milliseconds from_now) {
  return std::min(limit, Deadline(from_now));
}

// A rank leaves before it returns from main(), also where it has failed; only a
// rank of its host knows how its process ended.
Departure departure_of(const Fault& fault) {
  if (fault.kind != FaultKind::kPeerGone ||
      !fault.reason.starts_with(kLeftGroup))
    return Departure::kInError;
  return fault.reason.find(describe(ExitStatus{})) != std::string::npos
             ? Departure::kInGoodOrder
             : Departure::kLeft;
}

// The ranks that were awaited when a deadline passed; empty for all other
// errors.
std::optional<std::vector<int>> missing_when_expired(
    const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const WaitExpired& expired) {
    return expired.missing();
  } catch (...) {
    return std::nullopt;
  }
}

}  // namespace

WireCore::WireCore(Parts parts)
    : parts_(std::move(parts)),
      awaited_(index(parts_.identity.size)),
      lost_(index(parts_.identity.size)),
      last_seen_(index(parts_.identity.size)),
      chain_({parts_.fault, rank(), size()}) {
  if (parts_.death_keys.empty())
    abort_notice_ = std::make_shared<AbortNotice>(*parts_.transport);
}

WireCore::WireCore(const WireCore& same, const GroupIdentity& identity,
                   int duplicate)
    : parts_(same.parts_),
      abort_notice_(same.abort_notice_),
      awaited_(index(identity.size)),
      lost_(index(identity.size)),
      last_seen_(index(identity.size)),
      chain_({same.parts_.fault, identity.rank, identity.size, duplicate}) {
  parts_.identity = identity;
  parts_.duplicate = duplicate;
}

WireCore::~WireCore() { leave(); }

WireCore::PeerWatch::PeerWatch(WireCore& core, Deadline deadline)
    : core_(core),
      deadline_(deadline),
      next_look_(begun_ + kStoreCheckInterval),
      next_check_of_needed_(begun_ + kPeerCheckInterval) {}

WireCore::PeerWatch::PeerWatch(WireCore& core, Deadline deadline, int peer)
    : PeerWatch(core, deadline) {
  peer_ = peer;
}

void WireCore::PeerWatch::check() {
  if (deadline_.expired()) {
    check_needed();  // a rank that is gone is the cause, not one that is late
    throw WaitExpired();
  }
  check_others();
}

void WireCore::PeerWatch::check_needed() {
  // Threads that wait for messages do not touch the collective's requests.
  if (peer_) return;
  for (auto* each = core_.needed_; each != nullptr; each = each->outer_)
    each->check_();
}

void WireCore::PeerWatch::check_others() {
  const auto now = Deadline::Clock::now();
  if (now >= next_check_of_needed_) {
    next_check_of_needed_ = now + kPeerCheckInterval;
    check_needed();
  }
  // A fault may have begun with ranks that this rank does not communicate with.
  if (now < next_look_) return;
  next_look_ = now + kStoreCheckInterval;
  check_peers();
}

// The store may have ended with the rank that served it.
std::optional<Fault> WireCore::look_for_fault(Deadline deadline) {
  auto fault = parts_.fault->look(deadline);
  if (!fault && abort_notice_) fault = abort_notice_->heard();
  return fault;
}

void WireCore::PeerWatch::check_peers() {
  // No connection may tell of a rank of this host.
  if (peer_ == kAnySource && core_.host_.check) core_.host_.check();
  // A store that does not answer does not outlast the wait.
  const Deadline limit =
      std::min(deadline_, Deadline(GroupFault::kStorePatience));
  if (!core_.parts_.death_keys.empty()) {
    look_for_deaths(limit);
    check_store();
  } else if (auto fault = core_.look_for_fault(limit)) {
    throw FaultSeen(std::move(*fault));
  }
  look_for_unseen_deaths(limit);
}

// Only the store can tell that such a rank has died.
void WireCore::PeerWatch::look_for_unseen_deaths(Deadline deadline) {
  const Parts& parts = core_.parts_;
  if (peer_ || core_.needed_ == nullptr || parts.ended_keys.empty()) return;
  const std::vector<int> ranks = core_.needed_->unseen();
  if (ranks.empty()) return unseen_death_.reset();
  if (!parts.fault->first_set({std::string(kAnyEnded)}, deadline)) return;
  std::vector<std::string> keys;
  for (const int rank : ranks) keys.push_back(parts.ended_keys[index(rank)]);
  const auto found = parts.fault->first_set(std::move(keys), deadline);
  if (!found) return;
  const auto now = Deadline::Clock::now();
  if (!unseen_death_) unseen_death_ = now;
  if (now - *unseen_death_ < kPartArrives) return;
  throw TransportError(kTransportBroken, ranks[*found],
                       "the store has lost its connection to that rank");
}

// One call to the store while all ranks are alive.
void WireCore::PeerWatch::look_for_deaths(Deadline deadline) {
  const Parts& parts = core_.parts_;
  const std::vector<int> ranks = awaited();
  std::vector<int> alive = ranks;
  while (true) {
    std::vector<std::string> keys{parts.fault->key()};
    for (const int rank : alive) keys.push_back(parts.death_keys[index(rank)]);
    const auto found = parts.fault->first_set(std::move(keys), deadline);
    if (!found) break;
    if (*found == 0) {
      if (auto fault = parts.fault->look(deadline))
        throw FaultSeen(std::move(*fault));
      break;
    }
    const auto dead = alive.begin() + static_cast<std::ptrdiff_t>(*found) - 1;
    core_.lost(*dead);
    alive.erase(dead);
  }
  if (alive.size() == ranks.size() || (peer_ == kAnySource && !alive.empty()))
    return;
  const auto dead = std::ranges::find_if(
      ranks, [&](int rank) { return std::ranges::count(alive, rank) == 0; });
  throw TransportError(kTransportBroken, *dead,
                       "the store has lost its connection to that rank");
}

// Only the time of this wait counts: between waits a rank does not call the
// store.
void WireCore::PeerWatch::check_store() const {
  const auto silent = core_.parts_.fault->silent_since();
  if (!silent) return;
  const auto waited = Deadline::Clock::now() - std::max(*silent, begun_);
  const auto patience = core_.parts_.store_patience;
  if (waited < patience) return;
  throw NetworkError(fmt::format(
      "{} of {} (group \"{}\") gives up: while it waited for {}, the store, "
      "which reports the ranks that died, did not answer for {:.0f} s\n"
      "  likely:  the link between this host and the host that serves the "
      "store (rank 0's, or the launcher's) is down, or that process is stopped"
      "\n  next:    check the network between these hosts, and that the "
      "serving process runs; then start the job again",
      core_.name_of_rank(core_.rank()), core_.size(), core_.identity().name,
      core_.names_of(awaited()),
      std::chrono::duration<double>(patience).count()));
}

std::vector<int> WireCore::PeerWatch::awaited() const {
  if (!peer_) return core_.missing();
  return *peer_ == kAnySource ? core_.others() : std::vector<int>{*peer_};
}

void WireCore::wait(Request& request, Deadline deadline) {
  Request* const only = &request;
  wait_for_all(std::span(&only, 1), deadline);
}

void WireCore::wait_for_all(std::span<Request* const> requests,
                            Deadline deadline) {
  const auto is_done = [](Request* request) { return request->done(); };
  auto next = std::ranges::find_if_not(requests, is_done);
  if (next == requests.end()) return;
  PeerWatch watch(*this, deadline);
  while (next != requests.end()) {
    std::vector<int> peers;
    for (Request* request : std::span(next, requests.end()))
      if (!is_done(request)) peers.push_back(request->peer());
    held_up_by(std::move(peers));
    const auto timeout = std::clamp<Deadline::Clock::duration>(
        deadline.remaining(), 0us, kPeerCheckInterval);
    if (!(*next)->wait(std::chrono::duration_cast<microseconds>(timeout)))
      watch.check();
    next = std::find_if_not(next, requests.end(), is_done);
  }
}

void WireCore::held_up_by(std::vector<int> peers) {
  std::ranges::sort(peers);
  peers.erase(std::unique(peers.begin(), peers.end()), peers.end());
  const MutexLock lock(mutex_);
  held_up_by_ = std::move(peers);
}

void WireCore::expect_nobody() {
  for (std::atomic<int>& count : awaited_) count = 0;
  held_up_by({});
  waits_inside(nullptr);
}

void WireCore::waits_inside(std::function<std::vector<int>()> missing) {
  const MutexLock lock(mutex_);
  missing_inside_ = std::move(missing);
}

std::vector<int> WireCore::missing() const {
  std::function<std::vector<int>()> inside;
  {
    const MutexLock lock(mutex_);
    inside = missing_inside_;
  }
  std::vector<int> ranks;
  if (inside) ranks = inside();
  if (!ranks.empty()) return ranks;
  for (int r = 0; r < size(); ++r)
    if (awaited_[index(r)].load() > 0) ranks.push_back(r);
  if (!ranks.empty()) return ranks;
  const MutexLock lock(mutex_);
  return held_up_by_;
}

void WireCore::saw(int peer, const Signature& signature) {
  const MutexLock lock(mutex_);
  last_seen_[index(peer)] = signature;
}

void WireCore::saw_all(const Signature& signature) {
  const MutexLock lock(mutex_);
  last_seen_of_all_ = signature;
}

std::string WireCore::name_of_rank(int rank) const {
  const auto r = index(rank);
  std::string name = identity().describe(rank);
  if (r >= parts_.hosts.size() || parts_.hosts[r].empty()) return name;
  return fmt::format("{} on {}", name, parts_.hosts[r]);
}

// Other ranks read it too, so it names this rank as the one that noticed.
std::string WireCore::describe_loss(int peer, const std::string& why) const {
  if (why.starts_with(kLeftGroup))
    return fmt::format("{} (seen by {})", why, name_of_rank(rank()));
  const auto host = [&](int rank) -> std::string {
    const auto r = index(rank);
    return r < parts_.hosts.size() ? parts_.hosts[r] : "";
  };
  const bool on_one_host = !host(peer).empty() && host(peer) == host(rank());
  return fmt::format(
      "{} lost its connection to {}: that process ended or left "
      "the group{} ({})",
      name_of_rank(rank()), name_of_rank(peer),
      on_one_host ? "" : ", or the link between the hosts is down", why);
}

std::string WireCore::names_of(const std::vector<int>& ranks) const {
  constexpr std::size_t kMost = 4;
  std::vector<std::string> names;
  for (const int rank : std::span(ranks).first(std::min(ranks.size(), kMost)))
    names.push_back(name_of_rank(rank));
  if (ranks.size() > kMost)
    names.push_back(fmt::format("{} more", ranks.size() - kMost));
  return names.empty() ? "no rank" : fmt::format("{}", fmt::join(names, ", "));
}

std::string WireCore::describe_missing(const std::vector<int>& ranks) const {
  if (ranks.empty())
    return "\n  missing: no rank; one stopped during the operation";
  const MutexLock lock(mutex_);
  std::string text;
  for (const int rank : ranks) {
    const Signature& own = last_seen_[index(rank)];
    const Signature& seen =
        own.sequence > last_seen_of_all_.sequence ? own : last_seen_of_all_;
    text += fmt::format("\n  missing: {}, {}{}", name_of_rank(rank),
                        lost_[index(rank)] ? "which has died or left, " : "",
                        seen.sequence == 0
                            ? std::string("not seen in any operation yet")
                            : "last seen in " + describe(seen));
  }
  return text;
}

// Ranks that cannot send any more come first.
std::vector<int> WireCore::others() const {
  std::vector<int> ranks;
  for (int r = 0; r < size(); ++r)
    if (r != rank()) ranks.push_back(r);
  std::stable_partition(ranks.begin(), ranks.end(),
                        [this](int r) { return lost_[index(r)].load(); });
  return ranks;
}

std::vector<int> WireCore::missing_in(const Operation& operation) const {
  if (!is_point_to_point(operation.kind)) return missing();
  if (operation.peer == kAnySource) return others();
  return {operation.peer};
}

std::string WireCore::describe_timeout(const Operation& operation,
                                       Deadline::Clock::time_point begun,
                                       const std::vector<int>& ranks) const {
  return describe_timeout_of(describe(operation), begun, identity()) +
         describe_missing(ranks) +
         "\n  likely:  a missing rank is slow or dead, or called another "
         "collective in this place"
         "\n  next:    read the missing ranks' logs; LOCKSTEP_TIMEOUT sets how "
         "long to wait, in seconds";
}

// The collective's number among those of the group and its duplicates, 0 for a
// message.
std::uint64_t WireCore::sequence_of(const Operation& operation) const {
  constexpr int kSequenceBits = 48;
  if (is_point_to_point(operation.kind) || operation.sequence == 0) return 0;
  return operation.sequence | static_cast<std::uint64_t>(parts_.duplicate)
                                  << kSequenceBits;
}

WireCore::Cause WireCore::cause_of(const std::exception_ptr& error,
                                   const Operation& operation,
                                   const std::string& expired) {
  const std::uint64_t sequence = sequence_of(operation);
  try {
    std::rethrow_exception(error);
  } catch (const FaultSeen& seen) {
    return {seen.fault()};
  } catch (const WaitExpired&) {
    return {{FaultKind::kGaveUp, rank(), sequence,
             "it gave up waiting: " + expired}};
  } catch (const Mismatch& mismatch) {
    return {{FaultKind::kMismatch, rank(), sequence, mismatch.what()}};
  } catch (const TransportError& broken) {
    const int peer = broken.peer();
    if (peer < 0)
      return {{FaultKind::kAborted, rank(), sequence, broken.what()}};
    if (abort_notice_)
      if (auto heard = abort_notice_->heard_from(peer)) return {*heard};
    const bool left = abort_notice_ && abort_notice_->has_said_goodbye(peer);
    return {.fault = {FaultKind::kPeerGone, peer, sequence,
                      describe_loss(peer, left ? kLeftGroup : broken.what())},
            .is_guess = abort_notice_ != nullptr && !left};
  } catch (const std::exception& other) {
    return {{FaultKind::kAborted, rank(), sequence, other.what()}};
  }
}

std::exception_ptr WireCore::error_of(const Fault& fault,
                                      const Operation& operation) {
  if (fault.kind == FaultKind::kMismatch)
    return std::make_exception_ptr(Mismatch(fault.reason));
  if (fault.culprit == rank())
    return std::make_exception_ptr(Error(fmt::format(
        "{} failed on rank {} of {} (group \"{}\"): the other ranks gave up on "
        "this rank: {}",
        describe(operation), rank(), size(), identity().name, fault.reason)));
  const std::string text =
      fmt::format("{} failed on rank {} of {} (group \"{}\"): {} is gone: {}{}",
                  describe(operation), rank(), size(), identity().name,
                  name_of_rank(fault.culprit), fault.reason,
                  advice_after(departure_of(fault), identity(), fault.culprit));
  return std::make_exception_ptr(PeerFailure(fault.culprit, text));
}

AwaitedRanks WireCore::awaited_at(const Failure& failure) const {
  const Operation& operation = failure.operation;
  const auto named = missing_when_expired(failure.error);
  return {.ranks = named && !named->empty() ? *named : missing_in(operation),
          .any_suffices = is_point_to_point(operation.kind) &&
                          operation.peer == kAnySource};
}

// Replaces `awaited` by the ranks that all wait for. Returns false if the
// operation has completed meanwhile.
bool WireCore::find_late_ranks(AwaitedRanks& awaited, const Failure& failure,
                               Deadline patience) noexcept {
  if (chain_.publish(awaited, earlier(patience, kPublishes)))
    awaited.ranks = chain_.ends(awaited, earlier(patience, kOthersGiveUp));
  if (!failure.completed || !failure.completed()) return true;
  chain_.retract(patience);
  return false;
}

// With the rank that died the store has ended, and the ranks that saw it gave
// up and closed their connections. A rank that connects to one of these only
// then gets no notice, and would blame it. So it asks the ranks that it hears,
// and those of its host, which may be about to give up. A collective, which
// needs all ranks, else blames the lost rank to which this one was connected
// first: its notice would have come.
Fault WireCore::cause_of_loss(const Fault& mine) noexcept {
  const bool is_sure = abort_notice_->met_early(mine.culprit);
  if (auto told = fault_told(is_sure)) return *told;
  if (is_sure || mine.sequence == 0) return mine;
  const int lost = abort_notice_->first_lost().value_or(mine.culprit);
  if (lost == mine.culprit) return mine;
  return {FaultKind::kPeerGone, lost, mine.sequence,
          describe_loss(lost, "the connection to it ended")};
}

// What the ranks of this host tell, and unless `is_sure` others too, whom this
// rank then waits for.
std::optional<Fault> WireCore::fault_told(bool is_sure) noexcept try {
  const Deadline deadline(is_sure || !host_.check ? 0ms : kOthersEnd);
  Backoff backoff(1ms, 20ms);
  do {
    if (auto seen = fault_on_host()) return seen;
    auto heard = is_sure ? std::nullopt : abort_notice_->heard();
    if (heard && heard->culprit != rank()) return heard;
  } while (backoff.wait(deadline) != WaitResult::kTimedOut);
  return std::nullopt;
} catch (const std::exception&) {  // such as a lack of memory in poll()
  return std::nullopt;
}

std::optional<Fault> WireCore::fault_on_host() {
  try {
    if (host_.check) host_.check();
  } catch (const std::exception&) {
    const Operation nothing;
    const Fault seen = cause_of(std::current_exception(), nothing, "").fault;
    if (seen.culprit != rank()) return seen;
  }
  return std::nullopt;
}

// Returns the fault on which all ranks agree.
Fault WireCore::end_group(const Cause& mine, Deadline patience) noexcept {
  // Before the connections end, so that a rank that sees that finds the fault
  // in the store.
  const auto settled = parts_.fault->settle(mine.fault, patience);
  Fault fault = settled.value_or(mine.fault);
  if (!settled && mine.is_guess) fault = cause_of_loss(mine.fault);
  const bool without_store = !settled && fault.kind == FaultKind::kPeerGone;
  // The ranks of the host may wait for it.
  if (without_store && host_.tell) host_.tell(fault);
  if (abort_notice_)
    fault = abort_notice_->say(fault,
                               without_store ? kUntilAllHaveHeard : kBriefly);
  // A rank that sent an abort notice is not the culprit.
  if (abort_notice_ && fault.kind == FaultKind::kPeerGone &&
      fault.culprit != rank())
    fault = abort_notice_->heard_from(fault.culprit).value_or(fault);
  // Before the connections end too, for the same reason.
  if (host_.tell) host_.tell(fault);
  parts_.transport->close();
  return fault;
}

std::exception_ptr WireCore::give_up(const Failure& failure) noexcept {
  const Deadline patience(GroupFault::kStorePatience);
  AwaitedRanks awaited = awaited_at(failure);
  const bool is_late = missing_when_expired(failure.error).has_value();
  if (is_late && !find_late_ranks(awaited, failure, patience)) return nullptr;
  const std::string expired =
      describe_timeout(failure.operation, failure.begun, awaited.ranks);
  const Cause cause = cause_of(failure.error, failure.operation, expired);
  const Fault& mine = cause.fault;
  const Fault fault = end_group(cause, patience);
  const bool gave_up = fault.kind == FaultKind::kGaveUp;
  // Ranks that wait for the same rank give up at about the same time.
  if (mine.kind == FaultKind::kGaveUp && mine.culprit == rank() &&
      (fault.culprit == rank() || (gave_up && fault.sequence == mine.sequence)))
    return std::make_exception_ptr(Timeout(expired));
  if (mine.kind == FaultKind::kMismatch)
    return error_of(mine, failure.operation);
  if (gave_up && fault.culprit != rank() && !is_late)
    return error_beside(fault, failure, std::move(awaited), patience);
  if (fault.culprit == rank() && mine.kind == FaultKind::kAborted)
    return own_error(failure);
  return error_of(fault, failure.operation);
}

// The transport does not know the call that it fails.
std::exception_ptr WireCore::own_error(const Failure& failure) const {
  try {
    std::rethrow_exception(failure.error);
  } catch (const TransportError& error) {
    return std::make_exception_ptr(
        Error(fmt::format("{} failed on rank {} of {} (group \"{}\"): {}",
                          describe(failure.operation), rank(), size(),
                          identity().name, error.what())));
  } catch (...) {
    return failure.error;
  }
}

// The error of a rank that ends because another one gave up. If it waits too,
// it publishes for whom, because others may wait for it.
std::exception_ptr WireCore::error_beside(const Fault& fault,
                                          const Failure& failure,
                                          AwaitedRanks awaited,
                                          Deadline patience) {
  const bool published = !awaited.ranks.empty() &&
                         chain_.publish(awaited, earlier(patience, kPublishes));
  if (fault.sequence == 0 || fault.sequence != sequence_of(failure.operation) ||
      awaited.ranks.empty() || awaited.ranks == std::vector<int>{fault.culprit})
    return error_of(fault, failure.operation);
  if (published)
    awaited.ranks = chain_.ends(awaited, earlier(patience, kOthersEnd));
  return std::make_exception_ptr(Timeout(
      describe_timeout(failure.operation, failure.begun, awaited.ranks)));
}

void WireCore::leave_at_once(const std::string& reason) noexcept {
  parts_.fault->settle({FaultKind::kAborted, rank(), 0, reason});
  parts_.transport->close();
}

void WireCore::leave() noexcept {
  // First, so that each rank that is connected gets the goodbye.
  parts_.transport->stop_connecting();
  if (abort_notice_) abort_notice_->say_goodbye(rank(), kGoodbyePatience);
  parts_.transport->leave();
  parts_.fault->let_go_of_store();
}

}  // namespace lockstep
