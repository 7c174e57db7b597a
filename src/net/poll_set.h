// One turn of a poll loop: descriptors, and an action for each.
//
// Threads: one thread at a time.
// Errors:  SystemError when poll(2) fails.
#pragma once

#include <poll.h>

#include <functional>
#include <vector>

#include "lockstep/base/deadline.h"

namespace lockstep {

class PollSet {
 public:
  // wait() calls `action` when `descriptor` has one of `events`, is closed by
  // its other side or fails. A negative descriptor is ignored.
  void watch(int descriptor, short events, std::function<void()> action);

  // Waits until a descriptor is ready or the deadline passes, then calls the
  // actions of the ready ones, in the order of watch().
  void wait(Deadline deadline);

 private:
  std::vector<pollfd> entries_;
  std::vector<std::function<void()>> actions_;
};

}  // namespace lockstep
