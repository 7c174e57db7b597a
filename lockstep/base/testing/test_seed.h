// What chance is in a test: another in each run, printed, and the same again
// where LOCKSTEP_TEST_SEED says so.
//
// Threads: any.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <random>

namespace lockstep {

// A fresh seed, or the one that LOCKSTEP_TEST_SEED gives; printed in any case.
inline std::uint64_t test_seed() {
  const char* given = std::getenv("LOCKSTEP_TEST_SEED");
  const std::uint64_t seed = given == nullptr
                                 ? std::random_device{}() % 1'000'000'000
                                 : std::strtoull(given, nullptr, 10);
  std::cout << "LOCKSTEP_TEST_SEED=" << seed << std::endl;
  return seed;
}

}  // namespace lockstep
