// The lock that selects the thread that advances a group's operations; a thread
// holds it for a moment at a time.
//
// A thread that finds the progress_lock taken marks that and may go to sleep;
// the holder rings the doorbell when it releases the progress_lock, so that
// changes after its last check are not missed.
//
// Threads: any thread.
#pragma once

#include <atomic>
#include <mutex>

#include "src/base/mutex.h"
#include "src/comm/shm/doorbell.h"

namespace lockstep {

class LOCKSTEP_THREAD_ATTRIBUTE(capability("mutex")) ProgressLock {
 public:
  explicit ProgressLock(Doorbell& bell) : bell_(bell) {}

  void lock() LOCKSTEP_THREAD_ATTRIBUTE(acquire_capability()) { mutex_.lock(); }
  bool try_lock() LOCKSTEP_THREAD_ATTRIBUTE(try_acquire_capability(true)) {
    if (mutex_.try_lock()) return true;
    wanted_ = true;
    return mutex_.try_lock();
  }
  void unlock() LOCKSTEP_THREAD_ATTRIBUTE(release_capability()) {
    mutex_.unlock();
    if (!wanted_.load()) return;
    wanted_ = false;
    bell_.ring_for_own();
  }

 private:
  Doorbell& bell_;
  std::mutex mutex_;
  std::atomic<bool> wanted_{false};
};

// Holds an ProgressLock from construction to destruction.
class LOCKSTEP_THREAD_ATTRIBUTE(scoped_lockable) ProgressGuard {
 public:
  explicit ProgressGuard(ProgressLock& progress_lock)
      LOCKSTEP_THREAD_ATTRIBUTE(acquire_capability(progress_lock))
      : progress_lock_(progress_lock) {
    progress_lock_.lock();
  }
  // Holds a lock that the caller has taken.
  ProgressGuard(ProgressLock& progress_lock, std::adopt_lock_t)
      LOCKSTEP_THREAD_ATTRIBUTE(requires_capability(progress_lock))
      : progress_lock_(progress_lock) {}
  ~ProgressGuard() LOCKSTEP_THREAD_ATTRIBUTE(release_capability()) {
    progress_lock_.unlock();
  }
  ProgressGuard(const ProgressGuard&) = delete;
  ProgressGuard& operator=(const ProgressGuard&) = delete;

 private:
  ProgressLock& progress_lock_;
};

}  // namespace lockstep
