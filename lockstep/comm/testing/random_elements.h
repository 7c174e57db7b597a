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

// kMixed: floats are small and of mixed magnitude, so that another order of
// summation would show. kExact: floats are whole numbers from -3 to 3, of which
// sums and products of five are exact in every type.
enum class Elements { kMixed, kExact };

// Stores an element at `at`.
void store_element(DataType type, std::uint64_t random, std::byte* at,
                   Elements elements = Elements::kMixed);

}  // namespace lockstep
