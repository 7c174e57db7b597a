#include "src/net/wait.h"

#include <poll.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "lockstep/base/error.h"

namespace lockstep {

WaitResult wait_for(int descriptor, short events, Deadline deadline,
                    const Cancellation* cancellation) {
  const int cancelled = cancellation ? cancellation->descriptor() : -1;
  while (true) {
    std::array<pollfd, 2> polled{
        {{descriptor, events, 0}, {cancelled, POLLIN, 0}}};
    // Checked before poll(), so events during it still count.
    const bool last = deadline.expired();
    const int count =
        ::poll(polled.data(), polled.size(), deadline.poll_milliseconds());
    if (count < 0 && errno != EINTR)
      throw SystemError("could not wait for a file descriptor", errno);
    if (count > 0 && polled[0].revents != 0) return WaitResult::kReady;
    if (count > 0) return WaitResult::kCancelled;
    if (last) return WaitResult::kTimedOut;
  }
}

WaitResult Backoff::wait(Deadline deadline, const Cancellation* cancellation,
                         int descriptor) {
  const Deadline pause(next_);
  next_ = std::min(next_ * 2, longest_);
  const WaitResult result =
      wait_for(descriptor, POLLIN, std::min(pause, deadline), cancellation);
  if (result == WaitResult::kTimedOut && !deadline.expired())
    return WaitResult::kReady;
  return result;
}

}  // namespace lockstep
