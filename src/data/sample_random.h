// Random numbers that depend only on (seed, epoch, sample index): SplitMix64
// (Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators",
// OOPSLA 2014).
//
// Seeding a generator costs a few multiplications, so each sample has its own.
//
// Threads: single-threaded; a value.
#pragma once

#include <cstdint>

namespace lockstep {

class SampleRandom {
 public:
  SampleRandom(std::uint64_t seed, std::uint64_t epoch, std::uint64_t index)
      // Mixing between the additions separates (epoch, index) pairs with equal
      // sums.
      : state_(mix(mix(mix(seed + kStep) + epoch + kStep) + index)) {}

  std::uint64_t next() {
    state_ += kStep;
    return mix(state_);
  }

  // Uniform in 0 … end - 1; `end` is positive.
  std::uint32_t below(std::uint32_t end) {
    return static_cast<std::uint32_t>(((next() >> 32) * end) >> 32);
  }

  // Uniform in low … high, in steps of 2^-53 of the range.
  double uniform(double low, double high) {
    return low + (high - low) * static_cast<double>(next() >> 11) * 0x1p-53;
  }

 private:
  static constexpr std::uint64_t kStep = 0x9e3779b97f4a7c15u;

  static std::uint64_t mix(std::uint64_t z) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }

  std::uint64_t state_;
};

}  // namespace lockstep
