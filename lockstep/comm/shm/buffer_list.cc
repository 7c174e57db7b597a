#include "lockstep/comm/shm/buffer_list.h"

#include <algorithm>
#include <cstring>

namespace lockstep {
namespace {

// Calls visit(address, position, length) for each stretch of memory that bytes
// [at, at + length) of the run consist of; positions count from `at`.
template <class Visit>
void for_each_stretch(std::span<const Buffer> buffers, PartOf which,
                      std::size_t at, std::size_t length, const Visit& visit) {
  std::size_t start = 0;  // of the current buffer, within the run
  const std::size_t end = at + length;
  for (const Buffer& buffer : buffers) {
    if (start >= end) return;
    const std::size_t bytes = buffer.bytes() / which.parts;
    const std::size_t from = std::max(at, start);
    const std::size_t to = std::min(end, start + bytes);
    if (from < to)
      visit(static_cast<std::byte*>(buffer.data) + which.part * bytes +
                (from - start),
            from - at, to - from);
    start += bytes;
  }
}

}  // namespace

std::size_t total_bytes(std::span<const Buffer> buffers) {
  std::size_t total = 0;
  for (const Buffer& buffer : buffers) total += buffer.bytes();
  return total;
}

void copy_from(std::span<const Buffer> buffers, std::size_t at,
               std::span<std::byte> to) {
  for_each_stretch(
      buffers, {}, at, to.size(),
      [&](std::byte* memory, std::size_t position, std::size_t length) {
        std::memcpy(to.data() + position, memory, length);
      });
}

void copy_into(std::span<const Buffer> buffers, PartOf which, std::size_t at,
               std::span<const std::byte> from) {
  for_each_stretch(
      buffers, which, at, from.size(),
      [&](std::byte* memory, std::size_t position, std::size_t length) {
        std::memcpy(memory, from.data() + position, length);
      });
}

void copy_into(std::span<const Buffer> buffers, std::size_t at,
               std::span<const std::byte> from) {
  copy_into(buffers, PartOf{}, at, from);
}

}  // namespace lockstep
