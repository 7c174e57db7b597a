// The memory of this host, in bytes; nothing when the kernel does not tell.
//
// Threads: any thread.
#pragma once

#include <cstdint>
#include <optional>

namespace lockstep {

std::optional<std::uint64_t> total_memory();

// The kernel's estimate of the memory that programs can still allocate.
std::optional<std::uint64_t> available_memory();

}  // namespace lockstep
