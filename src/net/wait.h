// Waiting for a file descriptor, a deadline or a cancellation, whichever comes
// first.
//
// Threads: wait_for may be called from any thread; a Backoff belongs to one.
// Errors:  SystemError when the kernel refuses to wait.
#pragma once

#include <chrono>

#include "lockstep/base/deadline.h"

namespace lockstep {

enum class WaitResult { kReady, kTimedOut, kCancelled };

// Waits until `descriptor` has one of poll(2)'s `events`, has failed or has
// been hung up: kReady. A negative descriptor is never ready. When several are
// true at once, ready comes before cancelled, cancelled before timed out. A
// deadline that has already passed still polls once.
WaitResult wait_for(int descriptor, short events, Deadline deadline,
                    const Cancellation* cancellation = nullptr);

// Waits between the attempts of an action that poll(2) cannot wait for. Each
// wait is twice as long as the one before, up to a limit.
class Backoff {
 public:
  using Duration = std::chrono::milliseconds;

  Backoff(Duration first, Duration longest) : next_(first), longest_(longest) {}

  // Waits once; a readable `descriptor` ends the wait early. kReady means
  // retry.
  WaitResult wait(Deadline deadline, const Cancellation* cancellation = nullptr,
                  int descriptor = -1);

 private:
  Duration next_;
  Duration longest_;
};

}  // namespace lockstep
