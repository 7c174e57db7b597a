// The random choices of a fake GPU, from one seed, and the number of polls,
// which is its only notion of time.
//
// Threads: one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>

namespace lockstep {

class FakeChance {
 public:
  explicit FakeChance(std::uint64_t seed) : random_(seed) {}

  std::size_t below(std::size_t bound) { return random_() % bound; }
  bool one_in(std::size_t n) { return below(n) == 0; }

  void count_look() { ++looks_; }
  // The poll count at which a task becomes due; sometimes at once.
  std::uint64_t draw_due() {
    return one_in(3) ? looks_ + 1 + below(6) : looks_;
  }
  std::uint64_t draw_later() { return looks_ + 1 + below(6); }
  bool is_due(std::uint64_t due) const { return patient_ || looks_ >= due; }

  // From here to end_patience() every task is due, as after endless polls.
  void begin_patience() { patient_ = true; }
  void end_patience() { patient_ = false; }

 private:
  std::mt19937_64 random_;
  std::uint64_t looks_ = 0;
  bool patient_ = false;
};

}  // namespace lockstep
