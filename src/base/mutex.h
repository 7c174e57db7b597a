// A mutex and its lock that clang's thread-safety analysis understands
// (https://clang.llvm.org/docs/ThreadSafetyAnalysis.html); with other compilers
// the annotations vanish.
//
// Threads: any thread.
#pragma once

#include <mutex>

#ifdef __clang__
#define LOCKSTEP_THREAD_ATTRIBUTE(x) __attribute__((x))
#else
#define LOCKSTEP_THREAD_ATTRIBUTE(x)
#endif

// The member may be touched only with this mutex held.
#define LOCKSTEP_GUARDED_BY(mutex) LOCKSTEP_THREAD_ATTRIBUTE(guarded_by(mutex))
// The function may be called only with this mutex held.
#define LOCKSTEP_REQUIRES(mutex) \
  LOCKSTEP_THREAD_ATTRIBUTE(requires_capability(mutex))

namespace lockstep {

class LOCKSTEP_THREAD_ATTRIBUTE(capability("mutex")) Mutex {
 public:
  void lock() LOCKSTEP_THREAD_ATTRIBUTE(acquire_capability()) { mutex_.lock(); }
  void unlock() LOCKSTEP_THREAD_ATTRIBUTE(release_capability()) {
    mutex_.unlock();
  }
  bool try_lock() LOCKSTEP_THREAD_ATTRIBUTE(try_acquire_capability(true)) {
    return mutex_.try_lock();
  }

 private:
  std::mutex mutex_;
};

// Holds a Mutex from construction to destruction, except between unlock() and
// lock(). Works with std::condition_variable_any.
class LOCKSTEP_THREAD_ATTRIBUTE(scoped_lockable) MutexLock {
 public:
  explicit MutexLock(Mutex& mutex)
      LOCKSTEP_THREAD_ATTRIBUTE(acquire_capability(mutex))
      : lock_(mutex) {}
  ~MutexLock() LOCKSTEP_THREAD_ATTRIBUTE(release_capability()) = default;
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

  void lock() LOCKSTEP_THREAD_ATTRIBUTE(acquire_capability()) { lock_.lock(); }
  void unlock() LOCKSTEP_THREAD_ATTRIBUTE(release_capability()) {
    lock_.unlock();
  }

 private:
  std::unique_lock<Mutex> lock_;
};

}  // namespace lockstep
