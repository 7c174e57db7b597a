// The curves of which schedules of a learning rate consist: pure functions,
// which the trainer and CosineAnnealingLR share.
#pragma once

#include <cmath>
#include <cstdint>
#include <numbers>

namespace lockstep {

// From 1 to 0 along a half cosine while `progress` goes from 0 to 1.
inline double half_cosine(double progress) {
  return 0.5 * (1 + std::cos(std::numbers::pi * progress));
}

// From `start` to 1 linearly while `step` goes from 0 to `steps`.
inline double linear_warm_up(double start, std::int64_t step,
                             std::int64_t steps) {
  return start +
         (1 - start) * static_cast<double>(step) / static_cast<double>(steps);
}

}  // namespace lockstep
