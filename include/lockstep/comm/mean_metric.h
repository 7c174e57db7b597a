// The mean of a quantity over the samples of all ranks, each sample counted
// once, however many each rank has: the loss or the accuracy of a test set that
// the ranks divide.
//
//     lockstep::MeanMetric loss;
//     for (const auto& [inputs, targets] : share_of_this_rank)
//       loss.update(loss_of(inputs, targets), inputs.size(0));
//     const double perplexity = std::exp(loss.compute(*group));
//
// The average of the ranks' means would be another number where the ranks have
// different numbers of samples.
//
// Threads: single-threaded.
// Errors:  InvalidArgument for a weight that is negative, infinite or NaN;
//          those of collectives.
// Source:  torcheval.metrics.Mean.
#pragma once

#include "lockstep/comm/process_group.h"

namespace lockstep {

class MeanMetric {
 public:
  // Adds `weight` samples whose mean is `mean`, on this rank alone. Without a
  // weight nothing is added, whatever the mean: that of no samples is NaN.
  void update(double mean, double weight = 1);

  // The mean over what all ranks have added since their last reset(), with the
  // same bits on every rank; NaN if no rank has added anything. A collective:
  // every rank of `group` calls it, also one that has added nothing.
  double compute(ProcessGroup& group, const CallOptions& options = {}) const;

  // Forgets what this rank has added.
  void reset() { *this = {}; }

 private:
  double sum_ = 0;  // of means times weights
  double weight_ = 0;
};

}  // namespace lockstep
