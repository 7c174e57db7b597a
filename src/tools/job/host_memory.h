// The memory of this host, in bytes; 0 when the kernel does not tell.
//
// Threads: any thread.
#pragma once

#include <cstdint>

namespace lockstep {

std::uint64_t total_memory();

// The kernel's estimate of the memory that programs can still allocate.
std::uint64_t available_memory();

}  // namespace lockstep
