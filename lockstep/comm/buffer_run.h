// A list of buffers seen as one run of bytes, end to end.
//
// Threads: pure functions.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>

#include "lockstep/comm/buffer.h"

namespace lockstep {

// All of `buffers`, or the `part`-th of `parts` equal parts of each of them.
struct Run {
  std::span<const Buffer> buffers{};
  std::size_t part = 0;
  std::size_t parts = 1;
};

std::size_t total_bytes(const Run& run);

// Calls visit(address, position, length) for each stretch of memory that bytes
// [at, at + length) of the run consist of; positions count from `at`.
template <class Visit>
void for_each_stretch(const Run& run, std::size_t at, std::size_t length,
                      const Visit& visit) {
  std::size_t start = 0;  // of the current buffer, within the run
  const std::size_t end = at + length;
  for (const Buffer& buffer : run.buffers) {
    if (start >= end) return;
    const std::size_t bytes = buffer.bytes() / run.parts;
    const std::size_t from = std::max(at, start);
    const std::size_t to = std::min(end, start + bytes);
    if (from < to)
      visit(static_cast<std::byte*>(buffer.data) + run.part * bytes +
                (from - start),
            from - at, to - from);
    start += bytes;
  }
}

// Copies bytes [at, at + to.size()) of the run to `to`.
void copy_from(const Run& run, std::size_t at, std::span<std::byte> to);

// Copies `from` over bytes [at, at + from.size()) of the run.
void copy_into(const Run& run, std::size_t at, std::span<const std::byte> from);

}  // namespace lockstep
