// Ends another thread's wait: the waiter passes it along, any thread cancels
// it.
//
// Its file descriptor becomes readable, so a wait on sockets can include it in
// poll(2).
//
// Threads: every method may be called from any thread.
// Errors:  SystemError when the process is out of file descriptors.
#pragma once

#include <atomic>

namespace lockstep {

class Cancellation {
 public:
  Cancellation();
  ~Cancellation();
  Cancellation(const Cancellation&) = delete;
  Cancellation& operator=(const Cancellation&) = delete;

  // Ends present and future waits with `Cancelled`. Cannot be undone.
  void cancel() noexcept;

  bool cancelled() const { return cancelled_.load(); }

  // Readable once cancelled; owned by this object.
  int descriptor() const { return descriptor_; }

 private:
  std::atomic<bool> cancelled_{false};
  int descriptor_;
};

}  // namespace lockstep
