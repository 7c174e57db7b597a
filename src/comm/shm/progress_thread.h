// Advances operations that no thread waits for.
//
// A thread that polls a group's operations while some are in flight, polls less
// often while other threads make progress, and sleeps while none is in flight.
// It need not be quick: a waiting peer does most of the work in this rank's
// place, so the thread only has to let the next operation start.
//
// Threads: notify() may be called from any thread.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <thread>

#include "src/base/mutex.h"

namespace lockstep {

class ProgressThread {
 public:
  // `advance` moves operations on without blocking, and returns a number that
  // changes as they complete, or 0 when none is in flight.
  explicit ProgressThread(std::function<std::uint64_t()> advance);
  ~ProgressThread();
  ProgressThread(const ProgressThread&) = delete;
  ProgressThread& operator=(const ProgressThread&) = delete;

  // An operation is in flight. Costs one atomic exchange unless the thread
  // sleeps.
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
