// The learning rate over the steps of a run: a pure function of the step, so
// that a resumed run continues with the same rates.
//
// Errors:  InvalidArgument for an unknown name and for numbers out of range.
// Source:  the names, and where warm-up ends and the rest begins, are those of
//          torchvision's reference scripts; the values are those of PyTorch's
//          LinearLR, StepLR and CosineAnnealingLR when their step() is called
//          after every step of the optimizer, and epochs are counted in steps.
#pragma once

#include <cstdint>

#include "src/train/job/training_names.h"
#include "src/train/job/training_options.h"

namespace lockstep {

// From 1 to 0 along a half cosine while `progress` goes from 0 to 1.
double half_cosine(double progress);

// From `start` to 1 linearly while `step` goes from 0 to `steps`.
double linear_warm_up(double start, std::int64_t step, std::int64_t steps);

class LearningRate {
 public:
  // For a run of `epochs` epochs with the full rate `full_rate`.
  LearningRate(const ScheduleOptions& options, double full_rate, int epochs);

  // The rate of `step`, which counts the steps of the whole run from 0; an
  // epoch has `steps_per_epoch` steps.
  double at(std::int64_t step, std::int64_t steps_per_epoch) const;

 private:
  double cosine(double step, double steps) const;
  double one_cycle(double step, double steps) const;

  ScheduleOptions options_;
  Schedule schedule_;
  double full_rate_;
  std::int64_t epochs_;
};

}  // namespace lockstep
