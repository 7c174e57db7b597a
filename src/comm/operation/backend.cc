#include "src/comm/operation/backend.h"

#include <fmt/format.h>

#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>

#include "lockstep/base/error.h"

namespace lockstep {

std::exception_ptr group_was_left(const GroupIdentity& identity) {
  return std::make_exception_ptr(Error(fmt::format(
      "group \"{}\" was destroyed on {} while this operation was in flight\n"
      "  next:    wait for every operation before the group is destroyed",
      identity.name, identity.describe(identity.rank))));
}

std::shared_ptr<std::byte> Backend::allocate(std::size_t bytes) {
  constexpr std::size_t kAlignment = 64;
  if (bytes > std::numeric_limits<std::size_t>::max() - kAlignment)
    throw InvalidArgument(
        fmt::format("allocate: {} bytes are more than a process can address\n"
                    "  likely:  the size was computed from a negative number\n"
                    "  next:    check the sizes that it was computed from",
                    bytes));
  const std::size_t rounded = (bytes / kAlignment + 1) * kAlignment;
  void* memory = std::aligned_alloc(kAlignment, rounded);
  if (memory == nullptr) throw std::bad_alloc();
  std::memset(memory, 0, rounded);
  return {static_cast<std::byte*>(memory), &std::free};
}

void Backend::attach(const std::shared_ptr<CapturedGraph>& /*graph*/,
                     void* /*stream*/) {
  throw InvalidArgument(
      fmt::format("attach: the backend \"{}\" has no operations that could be "
                  "captured\n  next:    capture those on a GPU",
                  name()));
}

}  // namespace lockstep
