#include "src/comm/rendezvous/formation.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "lockstep/base/error.h"
#include "src/base/log.h"
#include "src/base/mutex.h"
#include "src/comm/rendezvous/group_fault.h"
#include "src/store/forwarding_store.h"
#include "src/store/peek.h"

// In the store, for group G:
//
//   group/G/verdict    kFormed, or the Fault that ended its forming
//   group/G/ready      how many ranks have met all others
//   group/G/ready/R    set by rank R when it has
//   group/G/left       how many have read that the group is formed
namespace lockstep {
namespace {

using namespace std::chrono_literals;

// An error must not wait for a store that does not answer.
constexpr auto kAbortNotice = 2s;
// Reading a key that was seen a moment ago takes no longer, unless it was
// erased.
constexpr auto kStillThere = 200ms;
// A rank may notice a connection's end before the server has executed the will.
constexpr auto kWillTakes = 200ms;

// Too short to be a Fault.
constexpr std::string_view kFormed = "formed";

std::string key_of(std::string_view group, std::string_view what) {
  return fmt::format("group/{}/{}", group, what);
}

[[noreturn]] void throw_fault(const Fault& fault,
                              const GroupIdentity& identity) {
  switch (fault.kind) {
    case FaultKind::kGaveUp:
      throw Timeout(fault.reason);
    case FaultKind::kMismatch:
      throw InvalidArgument(fmt::format(
          "group \"{}\" could not form, as {} found: {}", identity.name,
          identity.describe(fault.culprit), fault.reason));
    case FaultKind::kPeerGone:
      throw PeerFailure(fault.culprit, fault.reason);
    case FaultKind::kAborted:
      break;
  }
  throw PeerFailure(fault.culprit,
                    fmt::format("{} gave up while group \"{}\" was forming: {}",
                                identity.describe(fault.culprit), identity.name,
                                fault.reason));
}

// The store is the witness: it has executed the rank's last will.
Fault end_of(const GroupIdentity& identity, int rank) {
  return {FaultKind::kPeerGone, rank, 0,
          fmt::format("group \"{}\" of {} ranks could not form: the store has "
                      "lost its connection to {}: that process has ended or "
                      "left the job, or its host has lost its link\n"
                      "  next:    read rank {}'s log",
                      identity.name, identity.size, identity.describe(rank),
                      identity.rank_in_job(rank))};
}

// The Fault that reports this rank's error to the others.
Fault fault_of(const std::exception_ptr& error, int rank) {
  try {
    std::rethrow_exception(error);
  } catch (const PeerFailure& gone) {
    return {FaultKind::kPeerGone, gone.rank(), 0, gone.what()};
  } catch (const Timeout& late) {
    return {FaultKind::kGaveUp, rank, 0, late.what()};
  } catch (const InvalidArgument& refused) {
    return {FaultKind::kMismatch, rank, 0, refused.what()};
  } catch (const std::exception& other) {
    return {FaultKind::kAborted, rank, 0, other.what()};
  }
}

// Whether `stands`, which this rank or another has written, explains this
// rank's own error. Ranks that wait for the same rank give up at about the same
// time, each with its own list of missing ranks.
bool explains(const Fault& stands, const std::exception_ptr& error, int rank) {
  const bool is_own =
      stands.culprit == rank && stands.kind != FaultKind::kPeerGone;
  try {
    std::rethrow_exception(error);
  } catch (const PeerFailure&) {
    return !is_own;
  } catch (const NetworkError&) {
    return !is_own;
  } catch (const Timeout&) {
    return stands.kind != FaultKind::kGaveUp;
  } catch (...) {
    return false;
  }
}

}  // namespace

std::string ended_key(int rank_in_job) {
  return fmt::format("ended/{}", rank_in_job);
}

class MeetingStore : public ForwardingStore {
 public:
  MeetingStore(const GroupIdentity& identity, std::shared_ptr<Store> store)
      : ForwardingStore(std::move(store)), identity_(identity) {
    for (int rank = 0; rank < identity.size; ++rank) {
      if (rank == identity.rank) continue;
      wills_.push_back(ended_key(identity.rank_in_job(rank)));
      ranks_.push_back(rank);
    }
  }

  Store& whole() { return target(); }
  const std::string& verdict_key() const { return verdict_key_; }

  void set(std::string_view key, std::span<const std::byte> value,
           Deadline deadline) override {
    if (!formed_) {
      const MutexLock lock(mutex_);
      own_.emplace_back(key);
    }
    ForwardingStore::set(key, value, deadline);
  }

  Bytes get(std::string_view key, Deadline deadline,
            const Cancellation* cancellation) override {
    if (formed_) return target().get(key, deadline, cancellation);
    const std::string only(key);
    while (true) {
      Bytes there = peek(target(), key, deadline);
      if (!there.empty()) return there;
      wait_any(std::span(&only, 1), deadline, cancellation);
      // A rank that gives up meanwhile erases its keys.
      try {
        return target().get(key, std::min(deadline, Deadline(kStillThere)),
                            cancellation);
      } catch (const Timeout&) {
        if (deadline.expired()) throw;
      }
    }
  }

  std::vector<Bytes> multi_get(std::span<const std::string> keys,
                               Deadline deadline,
                               const Cancellation* cancellation) override {
    if (formed_) return target().multi_get(keys, deadline, cancellation);
    // Callers know that the keys exist. One that does not was erased by a rank
    // that has given up, so the verdict is there; or the store is slow.
    for (auto timeout = kStillThere;; timeout *= 2) try {
        return target().multi_get(keys, std::min(deadline, Deadline(timeout)),
                                  cancellation);
      } catch (const Timeout&) {
        if (deadline.expired()) throw;
        wait_any(keys.first(1), deadline, cancellation);
      }
  }

  std::size_t wait_any(std::span<const std::string> keys, Deadline deadline,
                       const Cancellation* cancellation) override {
    if (formed_) return target().wait_any(keys, deadline, cancellation);
    const Seen seen = watch(keys, deadline, cancellation);
    if (const auto* key = std::get_if<KeyIsSet>(&seen)) return key->index;
    heed(seen);
    LOCKSTEP_CHECK(false, "a group formed without one of its ranks");
    return 0;
  }

  bool erase(std::string_view key, Deadline deadline) override {
    {
      const MutexLock lock(mutex_);
      std::erase(own_, key);
    }
    return ForwardingStore::erase(key, deadline);
  }

  // Waits for the verdict, which takes precedence over a rank that ends after
  // it. Returns whether it came; throws if the group did not form.
  bool await_verdict(Deadline deadline) {
    std::optional<Seen> seen;
    try {
      seen = watch({}, deadline, nullptr);
    } catch (const Timeout&) {
      return false;
    }
    heed(*seen);
    return true;
  }

  // Writes `mine` as the verdict unless one exists; returns the Fault that
  // stands, empty if the group formed.
  std::optional<Fault> settle(const Bytes& mine, Deadline deadline) {
    return decode(
        target().compare_and_set(verdict_key(), std::nullopt, mine, deadline));
  }

  // The rank, if any, whose end becomes known within `timeout`.
  std::optional<int> ended_within(Deadline timeout) {
    try {
      return ranks_[target().wait_any(wills_, timeout)];
    } catch (const Timeout&) {
      return std::nullopt;
    }
  }

  // From now on it behaves like the underlying store.
  void be_formed() { formed_ = true; }

  // Erases this rank's keys.
  void erase_own(Deadline deadline) {
    std::vector<std::string> keys;
    {
      const MutexLock lock(mutex_);
      keys.swap(own_);
    }
    for (const std::string& key : keys) target().erase(key, deadline);
  }

 private:
  // What a wait has seen first.
  struct Verdict {};
  struct RankEnded {
    int rank;
  };
  struct KeyIsSet {
    std::size_t index;
  };
  using Seen = std::variant<Verdict, RankEnded, KeyIsSet>;

  // Waits for the verdict, the end of another rank, or one of `keys`. The wait
  // has as many keys as the group has ranks only once some rank of the job has
  // ended.
  Seen watch(std::span<const std::string> keys, Deadline deadline,
             const Cancellation* cancellation) {
    while (true) {
      std::vector<std::string> all{verdict_key_};
      const bool watches_each = watches_each_;
      if (watches_each)
        all.insert(all.end(), wills_.begin(), wills_.end());
      else
        all.emplace_back(kAnyEnded);
      const std::size_t own = all.size();
      all.insert(all.end(), keys.begin(), keys.end());
      const std::size_t found = target().wait_any(all, deadline, cancellation);
      if (found >= own) return KeyIsSet{found - own};
      if (found == 0) return Verdict{};
      if (watches_each) return RankEnded{ranks_[found - 1]};
      watches_each_ = true;
    }
  }

  // Throws the error for which `seen` stands, if it is one.
  void heed(const Seen& seen) {
    if (const auto* ended = std::get_if<RankEnded>(&seen))
      throw_fault(end_of(identity_, ended->rank), identity_);
    if (const auto fault = decode(target().get(verdict_key(), kStoreAnswers)))
      throw_fault(*fault, identity_);
  }

  const GroupIdentity identity_;
  const std::string verdict_key_ = key_of(identity_.full_name(), "verdict");
  // The wills of the other ranks, ranks_.
  std::vector<std::string> wills_;
  std::vector<int> ranks_;
  std::atomic<bool> watches_each_{false};
  std::atomic<bool> formed_{false};
  Mutex mutex_;
  std::vector<std::string> own_ LOCKSTEP_GUARDED_BY(mutex_);
};

Formation::Formation(const GroupIdentity& identity,
                     std::shared_ptr<Store> store, Seconds timeout)
    : identity_(identity),
      timeout_(timeout),
      store_(std::make_shared<MeetingStore>(identity, std::move(store))) {}

std::shared_ptr<Store> Formation::store() const { return store_; }

void Formation::complete() {
  const std::string ready = key_of(identity_.full_name(), "ready");
  store_->set(fmt::format("{}/{}", ready, identity_.rank), to_bytes("yes"),
              kStoreAnswers);
  if (store_->add(ready, 1, kStoreAnswers) == identity_.size)
    store_->settle(to_bytes(kFormed), kStoreAnswers);
  if (!store_->await_verdict(timeout_)) expire();
  store_->be_formed();
  try {
    clean_up();
  } catch (const Error& error) {
    // The group is formed; its next operation reports the error again.
    log(LogLevel::kDebug, error.what());
  }
}

// Throws, unless the last rank came while this rank gave up.
void Formation::expire() {
  const Timeout late = late_ranks();
  const Fault mine = fault_of(std::make_exception_ptr(late), identity_.rank);
  if (store_->settle(encode(mine), kStoreAnswers)) throw late;
}

Timeout Formation::late_ranks() {
  std::vector<std::string> missing;
  for (int rank = 0; rank < identity_.size; ++rank) {
    const std::string key =
        key_of(identity_.full_name(), fmt::format("ready/{}", rank));
    if (peek(store_->whole(), key, kStoreAnswers).empty())
      missing.push_back(identity_.describe(rank));
  }
  return Timeout(fmt::format(
      "group \"{}\" of {} ranks could not form: timed out on {}\n"
      "  missing: {}\n  likely:  slow or dead, or not started\n"
      "  next:    read the logs of the missing ranks",
      identity_.name, identity_.size, identity_.describe(identity_.rank),
      fmt::join(missing, ", ")));
}

// The last rank to read the verdict erases the counters.
void Formation::clean_up() {
  store_->erase_own(kStoreAnswers);
  const std::string left = key_of(identity_.full_name(), "left");
  if (store_->add(left, 1, kStoreAnswers) < identity_.size) return;
  store_->erase(store_->verdict_key(), kStoreAnswers);
  store_->erase(key_of(identity_.full_name(), "ready"), kStoreAnswers);
  store_->erase(left, kStoreAnswers);
}

void Formation::fail(const std::exception_ptr& error) {
  std::optional<Fault> stands;
  try {
    Fault mine = fault_of(error, identity_.rank);
    // The wills give the rank in this group's numbers.
    if (mine.kind == FaultKind::kPeerGone)
      if (const auto ended = store_->ended_within(kWillTakes))
        mine = end_of(identity_, *ended);
    stands = store_->settle(encode(mine), kAbortNotice);
    store_->erase_own(kAbortNotice);
  } catch (const Error& unreachable) {
    log(LogLevel::kDebug, unreachable.what());
  }
  if (stands && explains(*stands, error, identity_.rank))
    throw_fault(*stands, identity_);
  std::rethrow_exception(error);
}

std::exception_ptr failure_to_form(const GroupIdentity& identity,
                                   Store& store) {
  auto fault = decode(
      peek(store, key_of(identity.full_name(), "verdict"), kStoreAnswers));
  if (!fault) return nullptr;
  if (fault->kind == FaultKind::kGaveUp)
    fault->reason = fmt::format(
        "{} came after the others had given up waiting for it\n  likely:  it "
        "was slower than the others, or their timeout is shorter\n"
        "  next:    find out what delayed it, or raise "
        "LOCKSTEP_RENDEZVOUS_TIMEOUT; the ranks may repeat the call\n{}",
        identity.describe(identity.rank), fault->reason);
  try {
    throw_fault(*fault, identity);
  } catch (...) {
    return std::current_exception();
  }
}

}  // namespace lockstep
