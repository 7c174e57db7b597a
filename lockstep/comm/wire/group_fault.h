// What ended a group, agreed on by all its ranks through the store.
//
// When a rank dies, those that talk to it notice, give up, and are noticed by
// others in turn. So that all of them name the one it began with, whoever
// notices first writes it down, and everybody else reports what is written.
//
// Threads: every method may be called from any thread.
// Errors:  none thrown: a store that cannot be reached agrees to what this rank
//          saw itself.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/base/error.h"
#include "lockstep/base/mutex.h"
#include "lockstep/store/store.h"

namespace lockstep {

enum class FaultKind : std::uint8_t {
  kPeerGone = 0,  // the culprit's connection ended
  kGaveUp = 1,    // a deadline of the culprit passed
  kMismatch = 2,  // the reason is the table of who called what
  kAborted = 3,   // the culprit had an error of its own, or was told to stop
};

struct Fault {
  FaultKind kind = FaultKind::kAborted;
  int culprit = 0;  // the rank with which it began
  // Which collective of the group or a duplicate it was, 0 for a message.
  std::uint64_t sequence = 0;
  std::string reason;
};

// As bytes, and back; nothing where they are none.
Bytes encode(const Fault& fault);
std::optional<Fault> decode(const Bytes& bytes);

// Thrown by waits when another rank has written a fault down.
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

  // Writes `mine` down unless another fault stands there; returns what does.
  Fault settle(const Fault& mine) noexcept;

  // What stands there.
  std::optional<Fault> look() noexcept;

  // Says for which ranks `rank` waited when it gave up, and what another said;
  // nothing when it does not before `deadline`.
  void say_awaited(int rank, const std::vector<int>& awaited) noexcept;
  std::vector<int> awaited_by(int rank, Deadline deadline) noexcept;
  // One of `ranks` that has said so, once there is one; nothing when there is
  // none before `deadline`.
  std::optional<int> first_to_say(const std::vector<int>& ranks,
                                  Deadline deadline) noexcept;

  // The first of `keys` of the same store that is set now; nothing when none
  // is. One call of the store, however many they are.
  std::optional<std::size_t> first_set(std::vector<std::string> keys) noexcept;
  // Where what look() returns is written.
  const std::string& key() const { return key_; }

  // From now on the store is one that cannot be reached: this rank has left the
  // group, and a rank that serves the store may be about to serve another.
  void let_go_of_store() noexcept;

 private:
  Bytes peek(const std::string& key);
  std::string awaited_key(int rank) const;
  std::shared_ptr<Store> store() const;

  // Whether this rank has made sure that kPresent is set.
  std::atomic<bool> marked_{false};
  mutable Mutex mutex_;
  std::shared_ptr<Store> store_ LOCKSTEP_GUARDED_BY(mutex_);
  const std::string key_;
};

}  // namespace lockstep
