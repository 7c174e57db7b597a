#include "lockstep/base/cancellation.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

#include "lockstep/base/error.h"

namespace lockstep {

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
