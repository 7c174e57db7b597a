// Elements for tests, from pseudo-random numbers.
#pragma once

#include <cstddef>
#include <cstdint>

#include "lockstep/base/buffer.h"

namespace lockstep {

// A permutation of 64 bits that maps neighbours to unrelated values.
std::uint64_t mix_bits(std::uint64_t x);

// kMixed: floats are small and of mixed magnitude, so that another order of
// summation gives other bits. kExact: floats are whole numbers from -3 to 3,
// whose sums and products of five are exact in every type.
enum class Elements { kMixed, kExact };

// Stores an element at `at`.
void store_element(DataType type, std::uint64_t random, std::byte* at,
                   Elements elements = Elements::kMixed);

}  // namespace lockstep
