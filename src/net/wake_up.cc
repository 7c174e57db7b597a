#include "src/net/wake_up.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

#include "lockstep/base/error.h"

namespace lockstep {

WakeUp::WakeUp() : event_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!event_) throw SystemError("could not create an eventfd", errno);
}

void WakeUp::signal() noexcept {
  const std::uint64_t one = 1;
  // It fails only when the counter is full, and then it is already readable.
  [[maybe_unused]] const auto written = ::write(event_.get(), &one, sizeof one);
}

void WakeUp::reset() noexcept {
  std::uint64_t count = 0;
  // It fails only when nothing was signalled.
  [[maybe_unused]] const auto taken =
      ::read(event_.get(), &count, sizeof count);
}

}  // namespace lockstep
