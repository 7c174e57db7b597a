// Shuffled indices, bit for bit as PyTorch and Python shuffle them.
//
// Both draw from the Mersenne Twister MT19937 (Matsumoto and Nishimura, 1998),
// which is std::mt19937; they differ in seeding and in how they use a draw.
//
// Errors:  InvalidArgument for a count that is negative or too large.
#pragma once

#include <cstdint>
#include <vector>

namespace lockstep {

// The permutation of 0 … count - 1 that torch.randperm(count, generator=g)
// gives on the CPU after g.manual_seed(seed). As there, only the lower 32 bits
// of `seed` count.
std::vector<std::int64_t> random_permutation(std::int64_t count,
                                             std::uint64_t seed);

// 0 … count - 1 as Python's random.Random(seed).shuffle() orders them. `count`
// must be below 2^32.
std::vector<std::int64_t> python_permutation(std::int64_t count,
                                             std::uint64_t seed);

}  // namespace lockstep
