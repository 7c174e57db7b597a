// Carries forward what nobody waits for.
//
// A thread that looks at a group's operations now and then while some are in
// flight, more rarely while others make progress anyway, and sleeps while there
// are none. It need not be quick: a peer that waits does most of the work in
// our place, so all that is left to it is to let the next operation start.
//
// Threads: notify() may be called from any thread.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <thread>

#include "lockstep/base/mutex.h"

namespace lockstep {

class Progress {
 public:
  // `advance` moves operations on without blocking, and returns a number that
  // changes as they complete, or 0 when none is in flight.
  explicit Progress(std::function<std::uint64_t()> advance);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Something is in flight. Costs one atomic exchange unless the thread sleeps.
  void notify();

 private:
  void run();
  void park();

  std::function<std::uint64_t()> advance_;
  Mutex mutex_;
  std::condition_variable_any wake_;
  std::atomic<bool> parked_{false};
  bool stopping_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace lockstep
