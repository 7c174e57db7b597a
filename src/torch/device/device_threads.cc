#include "src/torch/device/device_threads.h"

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <ATen/ThreadLocalState.h>

#include <algorithm>
#include <atomic>
#include <exception>

#include "lockstep/base/error.h"
#include "src/base/signals_blocked.h"
#include "src/torch/device/vector_functions.h"

namespace lockstep {

struct DeviceThreads::Round {
  const std::function<void(int)>& body;
  at::ThreadLocalState state;  // the caller's
  int compute_threads;         // of each device
  std::vector<std::exception_ptr> errors;
  std::atomic<bool> changed_threads = false;
};

DeviceThreads::DeviceThreads(int devices)
    : waits_(static_cast<std::size_t>(devices), 0) {
  use_vector_functions_once();
  const SignalsBlocked blocked;
  try {
    for (int device = 0; device < devices; ++device)
      threads_.emplace_back([this, device] { serve(device); });
  } catch (...) {
    close();
    throw;
  }
}

DeviceThreads::~DeviceThreads() { close(); }

void DeviceThreads::close() {
  {
    const MutexLock lock(mutex_);
    closing_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void DeviceThreads::run(int count, const std::function<void(int)>& body) {
  LOCKSTEP_CHECK(count >= 0 && count <= std::ssize(threads_),
                 "each replica has a device of its own");
  if (count == 0) return;
  const int own_threads = at::get_num_threads();
  Round round{.body = body,
              .state = at::ThreadLocalState(),
              .compute_threads = std::max(1, own_threads / count),
              .errors = std::vector<std::exception_ptr>(
                  static_cast<std::size_t>(count)),
              .changed_threads = false};
  MutexLock lock(mutex_);
  round_ = &round;
  running_ = count;
  std::fill_n(waits_.begin(), count, 1);
  changed_.notify_all();
  while (running_ > 0) changed_.wait(lock);
  round_ = nullptr;
  // LibTorch gives the number that a thread sets to new threads too.
  if (round.changed_threads) at::set_num_threads(own_threads);
  for (const std::exception_ptr& error : round.errors)
    if (error) std::rethrow_exception(error);
}

void DeviceThreads::serve(int device) {
  const auto index = static_cast<std::size_t>(device);
  MutexLock lock(mutex_);
  while (true) {
    while (!closing_ && waits_[index] == 0) changed_.wait(lock);
    if (closing_) return;
    waits_[index] = 0;
    Round& round = *round_;
    lock.unlock();
    try {
      const at::ThreadLocalStateGuard state(round.state);
      if (at::get_num_threads() != round.compute_threads) {
        at::set_num_threads(round.compute_threads);
        round.changed_threads = true;
      }
      round.body(device);
    } catch (...) {
      round.errors[index] = std::current_exception();
    }
    lock.lock();
    if (--running_ == 0) changed_.notify_all();
  }
}

}  // namespace lockstep
