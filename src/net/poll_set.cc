#include "src/net/poll_set.h"

#include <cerrno>
#include <utility>

#include "lockstep/base/error.h"

namespace lockstep {

void PollSet::watch(int descriptor, short events,
                    std::function<void()> action) {
  if (descriptor < 0) return;
  entries_.push_back({.fd = descriptor, .events = events, .revents = 0});
  actions_.push_back(std::move(action));
}

void PollSet::wait(Deadline deadline) {
  const int ready =
      ::poll(entries_.data(), entries_.size(), deadline.poll_milliseconds());
  if (ready < 0 && errno != EINTR)
    throw SystemError("could not wait for workers", errno);
  if (ready <= 0) return;
  for (std::size_t i = 0; i < entries_.size(); ++i)
    if (entries_[i].revents != 0) actions_[i]();
}

}  // namespace lockstep
