#include "lockstep/base/deadline.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <limits>

#include "lockstep/base/error.h"

namespace lockstep {

Deadline::Clock::duration Deadline::remaining() const {
  if (is_never()) return Clock::duration::max();
  return std::max(when_ - Clock::now(), Clock::duration::zero());
}

int Deadline::poll_milliseconds() const {
  if (is_never()) return -1;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(remaining());
  return static_cast<int>(std::min<std::chrono::milliseconds::rep>(
      left.count(), std::numeric_limits<int>::max()));
}

Cancellation::Cancellation()
    : descriptor_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (descriptor_ < 0) throw SystemError("could not create an eventfd", errno);
}

Cancellation::~Cancellation() { ::close(descriptor_); }

void Cancellation::cancel() noexcept {
  cancelled_.store(true);
  const std::uint64_t one = 1;
  // It fails only when the counter is full, and then it is already readable.
  [[maybe_unused]] const auto written = ::write(descriptor_, &one, sizeof one);
}

}  // namespace lockstep
