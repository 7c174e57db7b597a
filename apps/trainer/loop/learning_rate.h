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

#include "apps/options/training_names.h"
#include "apps/options/training_options.h"

namespace lockstep {

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
