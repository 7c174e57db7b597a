// A list of buffers seen as one run of bytes, end to end.
//
// Threads: pure functions.
#pragma once

#include <cstddef>
#include <span>

#include "lockstep/comm/buffer.h"

namespace lockstep {

std::size_t total_bytes(std::span<const Buffer> buffers);

// Copies bytes [at, at + to.size()) of the run to `to`.
void copy_from(std::span<const Buffer> buffers, std::size_t at,
               std::span<std::byte> to);

// Copies `from` over bytes [at, at + from.size()) of the run.
void copy_into(std::span<const Buffer> buffers, std::size_t at,
               std::span<const std::byte> from);

// The same where buffer i is the `part`-th of `parts` equal parts of
// buffers[i]: what all_gather fills with one rank's contribution.
struct PartOf {
  std::size_t part = 0;
  std::size_t parts = 1;
};
void copy_into(std::span<const Buffer> buffers, PartOf which, std::size_t at,
               std::span<const std::byte> from);

}  // namespace lockstep
