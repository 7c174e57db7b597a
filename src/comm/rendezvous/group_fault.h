// The cause of a group's end, on which all its ranks agree through the store.
//
// When a rank dies, the ranks that communicate with it notice and give up, and
// others notice that in turn. The first rank to notice writes the fault into
// the store, and all other ranks report that fault, so that all name the rank
// where it began.
//
// Threads: every method may be called from any thread.
// Errors:  none thrown, except by store(): if the store cannot be reached, the
//          fault is the one that this rank saw itself.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/base/error.h"
#include "lockstep/store/store.h"
#include "src/base/mutex.h"

namespace lockstep {

enum class FaultKind : std::uint8_t {
  kPeerGone = 0,  // the culprit's connection ended
  kGaveUp = 1,    // one of the culprit's deadlines passed
  kMismatch = 2,  // the reason is the table of the ranks' calls
  kAborted = 3,   // the culprit had an error of its own, or was aborted
};

struct Fault {
  FaultKind kind = FaultKind::kAborted;
  int culprit = 0;  // the rank with which it began
  // The sequence number of the collective of the group or a duplicate; 0 for a
  // message.
  std::uint64_t sequence = 0;
  std::string reason;
};

// To bytes and back; decode() is empty if the bytes are not a Fault.
Bytes encode(const Fault& fault);
std::optional<Fault> decode(const Bytes& bytes);

// As the reason of an abort, for layers that pass on no more than a text; and
// back from a text that contains it, if one does. A reason of more than 1,500
// bytes is shortened in its middle.
std::string as_reason(const Fault& fault);
std::optional<Fault> fault_in(std::string_view text);

// Thrown by waits when another rank has written a fault.
class FaultSeen : public Error {
 public:
  explicit FaultSeen(Fault fault)
      : Error(fault.reason), fault_(std::move(fault)) {}
  const Fault& fault() const { return fault_; }

 private:
  Fault fault_;
};

class GroupFault {
 public:
  GroupFault(std::shared_ptr<Store> store, std::string key)
      : store_(std::move(store)), key_(std::move(key)) {}

  // A store that does not answer delays an error by no more than this.
  static constexpr std::chrono::seconds kStorePatience{2};

  // Writes `mine` into the store unless it holds a fault already; returns the
  // fault in the store, or nothing if the store did not answer.
  std::optional<Fault> settle(const Fault& mine,
                              Deadline deadline = kStorePatience) noexcept;

  // The fault in the store, if any.
  std::optional<Fault> look(Deadline deadline = kStorePatience) noexcept;

  // The first of `keys` of the same store that is set now, if any. Makes one
  // call to the store for all keys.
  std::optional<std::size_t> first_set(
      std::vector<std::string> keys,
      Deadline deadline = kStorePatience) noexcept;
  // The moment since which no call has been answered; empty if the last call
  // was, or if the store's server has ended, so that there is no store to wait
  // for.
  std::optional<Deadline::Clock::time_point> silent_since() const;
  // The key of the fault that look() returns; the group's other keys begin with
  // it.
  const std::string& key() const { return key_; }
  // Throws NetworkError once this rank has let go of it.
  std::shared_ptr<Store> store() const;

  // From now on the object treats the store as unreachable: this rank has left
  // the group, and the rank that serves the store may replace it.
  void let_go_of_store() noexcept;

 private:
  // Notes how a call ended that began at `begun`.
  void note_answer() noexcept;
  void note_error(const std::exception& error,
                  Deadline::Clock::time_point begun) noexcept;

  // Whether this rank has ensured that kPresent is set.
  std::atomic<bool> marked_{false};
  mutable Mutex mutex_;
  std::shared_ptr<Store> store_ LOCKSTEP_GUARDED_BY(mutex_);
  std::optional<Deadline::Clock::time_point> silent_since_
      LOCKSTEP_GUARDED_BY(mutex_);
  const std::string key_;
};

}  // namespace lockstep
