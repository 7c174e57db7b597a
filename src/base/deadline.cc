#include "lockstep/base/deadline.h"

#include <algorithm>
#include <limits>

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

}  // namespace lockstep
