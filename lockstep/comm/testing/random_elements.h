// Elements for tests, from numbers that only look random.
//
// Threads: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>

#include "lockstep/base/data_type.h"

namespace lockstep {

// A permutation of 64 bits in which neighbours have nothing in common.
std::uint64_t mix_bits(std::uint64_t x);

// Stores an element at `at`. Floats are small and of mixed magnitude, so that
// another order of summation would show.
void store_element(DataType type, std::uint64_t random, std::byte* at);

}  // namespace lockstep
