#include "lockstep/comm/buffer_run.h"

#include <cstring>
#include <string>

#include "lockstep/base/error.h"

namespace lockstep {

std::size_t total_bytes(const Run& run) {
  std::size_t total = 0;
  for (const Buffer& buffer : run.buffers) total += buffer.bytes() / run.parts;
  return total;
}

void copy_from(const Run& run, std::size_t at, std::span<std::byte> to) {
  for_each_stretch(
      run, at, to.size(),
      [&](std::byte* memory, std::size_t position, std::size_t length) {
        std::memcpy(to.data() + position, memory, length);
      });
}

void copy_into(const Run& run, std::size_t at,
               std::span<const std::byte> from) {
  for_each_stretch(
      run, at, from.size(),
      [&](std::byte* memory, std::size_t position, std::size_t length) {
        std::memcpy(memory, from.data() + position, length);
      });
}

std::vector<Buffer> split(const Buffer& buffer,
                          std::span<const std::int64_t> counts) {
  std::vector<Buffer> parts;
  auto* at = static_cast<std::byte*>(buffer.data);
  std::int64_t left = buffer.count;
  for (const std::int64_t count : counts) {
    if (count < 0 || count > left)
      throw InvalidArgument(
          "split: the counts must be positive or zero and add up to the " +
          std::to_string(buffer.count) + " elements of the buffer");
    parts.push_back({at, count, buffer.type, buffer.device});
    at += parts.back().bytes();
    left -= count;
  }
  if (left != 0)
    throw InvalidArgument("split: the counts leave out " +
                          std::to_string(left) + " elements of the buffer");
  return parts;
}

}  // namespace lockstep
