#include "src/comm/wire/wire_core.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <optional>

#include "src/comm/operation/operation_text.h"
#include "src/comm/operation/peer_checks.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using std::chrono::microseconds;

// Ranks that wait for the same rank give up at about the same time: this is how
// long a rank waits for what the others publish.
constexpr auto kOthersGiveUp = 1s;
// Reading a key that is set already takes no longer.
constexpr auto kStoreAnswers = 50ms;

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
      last_seen_(index(parts_.identity.size)) {
  if (parts_.death_keys.empty())
    abort_notice_ =
        std::make_shared<AbortNotice>(*parts_.transport, rank(), size());
}

WireCore::WireCore(const WireCore& same, const GroupIdentity& identity,
                   int duplicate)
    : parts_(same.parts_),
      abort_notice_(same.abort_notice_),
      awaited_(index(identity.size)),
      lost_(index(identity.size)),
      last_seen_(index(identity.size)) {
  parts_.identity = identity;
  parts_.duplicate = duplicate;
}

WireCore::~WireCore() { leave(); }

WireCore::Vigil::Vigil(WireCore& core, Deadline deadline)
    : core_(core),
      deadline_(deadline),
      next_look_(Deadline::Clock::now() + kStoreCheckInterval) {}

WireCore::Vigil::Vigil(WireCore& core, Deadline deadline, int peer)
    : Vigil(core, deadline) {
  peer_ = peer;
}

void WireCore::Vigil::check() {
  const auto now = Deadline::Clock::now();
  // A fault may have begun with ranks that this rank does not communicate with.
  if (now >= next_look_) {
    next_look_ = now + kStoreCheckInterval;
    check_peers();
  }
  if (deadline_.expired()) throw WaitExpired();
}

// The store may have ended with the rank that served it.
std::optional<Fault> WireCore::look_for_fault() {
  auto fault = parts_.fault->look();
  if (!fault && abort_notice_) fault = abort_notice_->heard();
  return fault;
}

void WireCore::Vigil::check_peers() {
  if (!core_.parts_.death_keys.empty()) return look_for_deaths();
  if (auto fault = core_.look_for_fault()) throw FaultSeen(std::move(*fault));
}

// One call to the store while all ranks are alive.
void WireCore::Vigil::look_for_deaths() {
  const Parts& parts = core_.parts_;
  const std::vector<int> ranks = awaited();
  std::vector<int> alive = ranks;
  while (true) {
    std::vector<std::string> keys{parts.fault->key()};
    for (const int rank : alive) keys.push_back(parts.death_keys[index(rank)]);
    const auto found = parts.fault->first_set(std::move(keys));
    if (!found) break;
    if (*found == 0) {
      if (auto fault = parts.fault->look()) throw FaultSeen(std::move(*fault));
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
                       "the store has lost its connection");
}

std::vector<int> WireCore::Vigil::awaited() const {
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
  Vigil vigil(*this, deadline);
  while (next != requests.end()) {
    std::vector<int> peers;
    for (Request* request : std::span(next, requests.end()))
      if (!is_done(request)) peers.push_back(request->peer());
    held_up_by(std::move(peers));
    const auto timeout = std::clamp<Deadline::Clock::duration>(
        deadline.remaining(), 0us, kStoreCheckInterval);
    if (!(*next)->wait(std::chrono::duration_cast<microseconds>(timeout)))
      vigil.check();
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

void WireCore::wait_for_peer(Request& request, int peer, Deadline deadline) {
  wait(request, deadline);
  arrived(peer);
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

std::string WireCore::name_of_rank(int rank) const {
  const auto r = index(rank);
  std::string name = identity().describe(rank);
  if (r >= parts_.hosts.size() || parts_.hosts[r].empty()) return name;
  return fmt::format("{} on {}", name, parts_.hosts[r]);
}

std::string WireCore::describe_missing(const std::vector<int>& ranks) const {
  if (ranks.empty())
    return "\n  missing: no rank; one stopped during the operation";
  const MutexLock lock(mutex_);
  std::string text;
  for (const int rank : ranks) {
    const Signature& seen = last_seen_[index(rank)];
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

// The ranks at the ends of the wait chains that begin with `ranks`: a rank that
// publishes awaited ranks is late because of those.
std::vector<int> WireCore::awaited_by_all(const std::vector<int>& ranks) const {
  const Deadline deadline(kOthersGiveUp);
  std::vector<int> found;   // all ranks of the chains, in the order of `ranks`
  std::vector<int> silent;  // the rank waits for all of these at once
  std::vector<int> waiting;
  const auto has = [](const std::vector<int>& list, int wanted) {
    return std::ranges::find(list, wanted) != list.end();
  };
  const auto follow = [&](const std::vector<int>& further) {
    for (const int next : further) {
      if (next < 0 || next >= size() || next == rank() || has(found, next))
        continue;
      found.push_back(next);
      silent.push_back(next);
    }
  };
  follow(ranks);
  while (!silent.empty()) {
    const auto said = parts_.fault->first_to_say(
        silent, std::max(deadline, Deadline(kStoreAnswers)));
    if (!said) break;
    std::erase(silent, *said);
    const auto further = parts_.fault->awaited_by(*said, kStoreAnswers);
    if (!further.empty()) waiting.push_back(*said);
    follow(further);
  }
  std::erase_if(found, [&](int next) { return has(waiting, next); });
  return found.empty() ? ranks : found;
}

// The collective's number among those of the group and its duplicates, 0 for a
// message.
std::uint64_t WireCore::sequence_of(const Operation& operation) const {
  constexpr int kSequenceBits = 48;
  if (is_point_to_point(operation.kind) || operation.sequence == 0) return 0;
  return operation.sequence | static_cast<std::uint64_t>(parts_.duplicate)
                                  << kSequenceBits;
}

Fault WireCore::fault_of(const std::exception_ptr& error,
                         const Operation& operation,
                         const std::string& expired) {
  const std::uint64_t sequence = sequence_of(operation);
  try {
    std::rethrow_exception(error);
  } catch (const FaultSeen& seen) {
    return seen.fault();
  } catch (const WaitExpired&) {
    return {FaultKind::kGaveUp, rank(), sequence,
            "it gave up waiting: " + expired};
  } catch (const Mismatch& mismatch) {
    return {FaultKind::kMismatch, rank(), sequence, mismatch.what()};
  } catch (const TransportError& broken) {
    if (broken.peer() >= 0 && abort_notice_)
      if (auto heard = abort_notice_->heard_from(broken.peer())) return *heard;
    if (broken.peer() >= 0)
      return {FaultKind::kPeerGone, broken.peer(), sequence,
              fmt::format("its process ended, or it left the group ({})",
                          broken.what())};
    return {FaultKind::kAborted, rank(), sequence, broken.what()};
  } catch (const std::exception& other) {
    return {FaultKind::kAborted, rank(), sequence, other.what()};
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
  const std::string text = fmt::format(
      "{} failed on rank {} of {} (group \"{}\"): {} is gone: {}\n"
      "  next:    read rank {}'s log; the group is unusable, make a new one",
      describe(operation), rank(), size(), identity().name,
      name_of_rank(fault.culprit), fault.reason,
      identity().rank_in_job(fault.culprit));
  return std::make_exception_ptr(PeerFailure(fault.culprit, text));
}

std::exception_ptr WireCore::give_up(
    const std::exception_ptr& error, const Operation& operation,
    Deadline::Clock::time_point begun) noexcept {
  const auto late = missing_when_expired(error);
  std::vector<int> awaited =
      late && !late->empty() ? *late : missing_in(operation);
  if (late) {
    parts_.fault->say_awaited(rank(), awaited);
    awaited = awaited_by_all(awaited);
  }
  const std::string expired = describe_timeout(operation, begun, awaited);
  const Fault mine = fault_of(error, operation, expired);
  // Before the connections end, so that a rank that sees that finds the fault
  // in the store.
  Fault fault = parts_.fault->settle(mine);
  if (abort_notice_) abort_notice_->say(fault);
  // A rank that sent an abort notice is not the culprit.
  if (abort_notice_ && fault.kind == FaultKind::kPeerGone &&
      fault.culprit != rank())
    fault = abort_notice_->heard_from(fault.culprit).value_or(fault);
  parts_.transport->close();
  const auto is = [&](FaultKind kind) { return mine.kind == kind; };
  // Ranks that wait for the same rank give up at about the same time.
  if (is(FaultKind::kGaveUp) && mine.culprit == rank() &&
      (fault.culprit == rank() ||
       (fault.kind == FaultKind::kGaveUp && fault.sequence == mine.sequence)))
    return std::make_exception_ptr(Timeout(expired));
  if (fault.kind == FaultKind::kGaveUp && fault.sequence != 0 &&
      fault.sequence == sequence_of(operation) && fault.culprit != rank() &&
      !awaited.empty() && awaited != std::vector<int>{fault.culprit})
    return std::make_exception_ptr(Timeout(
        late ? expired
             : describe_timeout(operation, begun, awaited_by_all(awaited))));
  if (is(FaultKind::kMismatch)) return error_of(mine, operation);
  if (fault.culprit == rank() && is(FaultKind::kAborted)) return error;
  return error_of(fault, operation);
}

void WireCore::leave_at_once(const std::string& reason) noexcept {
  parts_.fault->settle({FaultKind::kAborted, rank(), 0, reason});
  parts_.transport->close();
}

void WireCore::leave() noexcept {
  parts_.transport->leave();
  parts_.fault->let_go_of_store();
}

}  // namespace lockstep
