// The collectives that a group has in flight, in start order. Each has a
// ticket: 1 for the first, and so on.
//
// One thread at a time advances a collective (see ShmBackend); it may use the
// pointer from oldest() until it calls complete_oldest(). Any thread may ask
// about tickets meanwhile.
//
// Threads: only the thread that advances calls oldest() and complete_oldest();
//          any thread may call every other method.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "src/base/mutex.h"
#include "src/comm/shm/pending_collective.h"

namespace lockstep {

class CollectiveQueue {
 public:
  struct Started {
    std::uint64_t ticket = 0;
    PendingCollective* only =
        nullptr;  // the collective, if no other is before it
  };
  Started start(const Operation& operation, const GroupIdentity& identity);

  // The collective to advance; null if none is in flight.
  PendingCollective* oldest();
  // Marks the oldest collective as complete.
  void complete_oldest() {
    current_ = nullptr;
    completed_.fetch_add(1);
  }

  // Tickets up to this one are complete.
  std::uint64_t completed() const { return completed_.load(); }
  bool empty();

  // Calls `look` with the collective of `ticket`; returns false, without
  // calling it, if that is complete or was never started.
  bool visit(std::uint64_t ticket,
             const std::function<void(PendingCollective&)>& look);

 private:
  void reap() LOCKSTEP_REQUIRES(mutex_);

  Mutex mutex_;  // only held for a few instructions, and to visit
  // The first is ticket reaped_ + 1; collectives up to completed_ can be
  // removed.
  std::deque<std::unique_ptr<PendingCollective>> queue_
      LOCKSTEP_GUARDED_BY(mutex_);
  std::uint64_t reaped_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
  std::vector<std::unique_ptr<PendingCollective>> spare_
      LOCKSTEP_GUARDED_BY(mutex_);
  std::atomic<std::uint64_t> completed_{0};
  // The last result of oldest(), until it is complete: the advancing thread
  // polls it without a lock.
  PendingCollective* current_ = nullptr;
};

}  // namespace lockstep
