// A test's random seed: a new one in each run, printed, or the value of
// LOCKSTEP_TEST_SEED.
//
// Threads: any thread.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <random>

namespace lockstep {

// A fresh seed, or the value of LOCKSTEP_TEST_SEED. Prints the seed in both
// cases.
inline std::uint64_t test_seed() {
  const char* given = std::getenv("LOCKSTEP_TEST_SEED");
  const std::uint64_t seed = given == nullptr
                                 ? std::random_device{}() % 1'000'000'000
                                 : std::strtoull(given, nullptr, 10);
  std::cout << "LOCKSTEP_TEST_SEED=" << seed << std::endl;
  return seed;
}

}  // namespace lockstep
