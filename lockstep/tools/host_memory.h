// How much memory this host has, in bytes; 0 where the kernel does not say.
//
// Threads: any thread.
#pragma once

#include <cstdint>

namespace lockstep {

std::uint64_t total_memory();

// What programs can still have, by the kernel's own estimate.
std::uint64_t available_memory();

}  // namespace lockstep
