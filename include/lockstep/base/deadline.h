// What ends a wait: a moment at which it gives up, or another thread.
//
// Everything that can wait takes a Deadline. A deadline is absolute, so a call
// that waits several times keeps one limit. A duration converts:
// `work.wait(5s)`.
//
// Threads: a value; share copies freely.
#pragma once

#include <atomic>
#include <chrono>

namespace lockstep {

class Deadline {
 public:
  using Clock = std::chrono::steady_clock;

  // `duration` from now. Durations too long for the clock mean never.
  template <class Rep, class Period>
  Deadline(std::chrono::duration<Rep, Period> duration)  // NOLINT: converts
      : when_(after(duration)) {}

  static Deadline never() { return Deadline(Clock::time_point::max()); }

  explicit Deadline(Clock::time_point when) : when_(when) {}

  Clock::time_point when() const { return when_; }
  bool is_never() const { return when_ == Clock::time_point::max(); }
  bool expired() const { return !is_never() && Clock::now() >= when_; }

  // Time left, zero when it has passed, Clock::duration::max() for never.
  Clock::duration remaining() const;

  // Time left as poll(2) wants it: milliseconds rounded up, -1 for never.
  int poll_milliseconds() const;

  friend auto operator<=>(const Deadline&, const Deadline&) = default;

 private:
  template <class Rep, class Period>
  static Clock::time_point after(std::chrono::duration<Rep, Period> duration) {
    using Seconds = std::chrono::duration<double>;
    if (Seconds(duration) > std::chrono::years(10))
      return Clock::time_point::max();
    return Clock::now() + std::chrono::duration_cast<Clock::duration>(duration);
  }

  Clock::time_point when_;
};

// Ends another thread's wait: the waiter passes it along, any thread cancels
// it.
//
// Its file descriptor becomes readable, so a wait on sockets can include it in
// poll(2).
//
// Threads: every method may be called from any thread.
// Errors:  SystemError when the process is out of file descriptors.
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
