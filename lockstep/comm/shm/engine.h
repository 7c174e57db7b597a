// The lock that selects the thread that advances a group's operations; a thread
// holds it for a moment at a time.
//
// A thread that finds the engine taken marks that and may go to sleep; the
// holder rings the doorbell when it releases the engine, so that changes after
// its last check are not missed.
//
// Threads: any thread.
#pragma once

#include <atomic>

#include "lockstep/base/mutex.h"
#include "lockstep/comm/shm/doorbell.h"

namespace lockstep {

class LOCKSTEP_THREAD_ATTRIBUTE(capability("mutex")) Engine {
 public:
  explicit Engine(Doorbell& bell) : bell_(bell) {}

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
    bell_.ring();
  }

 private:
  Doorbell& bell_;
  std::mutex mutex_;
  std::atomic<bool> wanted_{false};
};

// Holds an Engine from construction to destruction.
class LOCKSTEP_THREAD_ATTRIBUTE(scoped_lockable) EngineLock {
 public:
  explicit EngineLock(Engine& engine)
      LOCKSTEP_THREAD_ATTRIBUTE(acquire_capability(engine))
      : engine_(engine) {
    engine_.lock();
  }
  ~EngineLock() LOCKSTEP_THREAD_ATTRIBUTE(release_capability()) {
    engine_.unlock();
  }
  EngineLock(const EngineLock&) = delete;
  EngineLock& operator=(const EngineLock&) = delete;

 private:
  Engine& engine_;
};

}  // namespace lockstep
