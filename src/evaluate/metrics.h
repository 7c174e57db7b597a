// Loss and accuracy, summed over samples and then over ranks. A test set is
// divided over ranks by each_sample_once() (lockstep/data/sample_order.h),
// so that no sample is counted twice.
//
// Threads: reduce() is a collective: every rank of the group calls it.
#pragma once

#include <cstdint>

#include "lockstep/comm/process_group.h"

namespace lockstep {

// Results of some samples, as sums, so that parts can be added.
struct Metrics {
  double loss = 0;  // the sum of the samples' losses
  std::int64_t correct = 0;
  std::int64_t samples = 0;

  // Means over the samples; NaN without samples.
  double mean_loss() const { return loss / static_cast<double>(samples); }
  double accuracy() const {
    return static_cast<double>(correct) / static_cast<double>(samples);
  }

  Metrics& operator+=(const Metrics& other) {
    loss += other.loss;
    correct += other.correct;
    samples += other.samples;
    return *this;
  }
  friend bool operator==(const Metrics&, const Metrics&) = default;
};

// The sum of every rank's metrics, the same on every rank.
Metrics reduce(const Metrics& mine, ProcessGroup& group);

}  // namespace lockstep
