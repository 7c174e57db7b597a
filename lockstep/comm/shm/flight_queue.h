// The collectives that a group has in flight, in the order in which they were
// started. Each has a ticket: 1 for the first, and so on.
//
// A flight is advanced by one thread at a time (see ShmBackend), which may use
// the pointer that oldest() gave it until it says that the flight is complete;
// everybody may ask about tickets meanwhile.
//
// Threads: oldest() and complete_oldest() by the one thread that advances;
//          every other method from any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "lockstep/base/mutex.h"
#include "lockstep/comm/shm/flight.h"

namespace lockstep {

class FlightQueue {
 public:
  struct Started {
    std::uint64_t ticket = 0;
    Flight* only = nullptr;  // the flight, when no other is before it
  };
  Started start(const Operation& operation, const GroupIdentity& identity);

  // The flight to advance; null when there is none.
  Flight* oldest();
  // The oldest is complete.
  void complete_oldest() {
    current_ = nullptr;
    completed_.fetch_add(1);
  }

  // Tickets up to this one are complete.
  std::uint64_t completed() const { return completed_.load(); }
  bool empty();

  // Calls `look` with the flight behind `ticket`; returns false, without
  // calling it, when that is complete or was never started.
  bool visit(std::uint64_t ticket, const std::function<void(Flight&)>& look);

 private:
  void reap() LOCKSTEP_REQUIRES(mutex_);

  Mutex mutex_;  // only held for a few instructions, and to visit
  // The first is ticket reaped_ + 1; those up to completed_ are done with.
  std::deque<std::unique_ptr<Flight>> queue_ LOCKSTEP_GUARDED_BY(mutex_);
  std::uint64_t reaped_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
  std::vector<std::unique_ptr<Flight>> spare_ LOCKSTEP_GUARDED_BY(mutex_);
  std::atomic<std::uint64_t> completed_{0};
  // What oldest() returned last, until it is complete: whoever advances looks
  // again and again, and needs no lock for that.
  Flight* current_ = nullptr;
};

}  // namespace lockstep
