// One thread per device of a process, in which its replica computes.
//
// The threads live as long as the object, so that LibTorch makes its per-thread
// state once. They run in the caller's state (gradients on or off, autocast and
// so on), and divide the caller's compute threads among them.
//
// Threads: run() is called by one thread at a time, and not from within run().
// Errors:  std::system_error when a thread cannot start; what the function
//          throws.
#pragma once

#include <condition_variable>
#include <functional>
#include <thread>
#include <vector>

#include "src/base/mutex.h"

namespace lockstep {

class DeviceThreads {
 public:
  explicit DeviceThreads(int devices);
  ~DeviceThreads();

  DeviceThreads(const DeviceThreads&) = delete;
  DeviceThreads& operator=(const DeviceThreads&) = delete;

  // Calls body(0) … body(count - 1), each in its device's thread, and returns
  // when all have returned. Throws the exception of the first in this order
  // that threw. `count` is at most the number of devices.
  void run(int count, const std::function<void(int)>& body);

 private:
  struct Round;

  void serve(int device);
  void close();

  Mutex mutex_;
  std::condition_variable_any changed_;
  Round* round_ LOCKSTEP_GUARDED_BY(mutex_) = nullptr;   // null: none runs
  std::vector<char> waits_ LOCKSTEP_GUARDED_BY(mutex_);  // for it, by device
  int running_ LOCKSTEP_GUARDED_BY(mutex_) = 0;          // devices in it
  bool closing_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace lockstep
