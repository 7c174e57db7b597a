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
#include <span>
#include <string>
#include <string_view>

namespace lockstep {

enum class Schedule {
  kConstant,
  // Rises linearly to the full rate over the first fifth of the steps, then
  // falls along a half cosine to zero: "one cycle" (Smith and Topin, 2018),
  // with the annealing of Loshchilov and Hutter, 2017.
  kOneCycle,
  // Is multiplied by `gamma` every `step_size` epochs.
  kStep,
  // Falls along a half cosine to `min_rate`.
  kCosine,
};

struct ScheduleOptions {
  std::string name = "one-cycle";  // see known_schedules()
  int step_size = 30;              // epochs; of step
  double gamma = 0.1;              // of step
  double min_rate = 0;             // of cosine
  // Epochs, maybe fractional, over which the rate rises linearly from
  // `warmup_decay` times the full rate before the schedule begins. Not for
  // one-cycle, which has a warm-up of its own.
  double warmup_epochs = 0;
  double warmup_decay = 0.01;
};

// The names that parse_schedule() takes: "one-cycle", "constant", "step",
// "cosine".
std::span<const std::string_view> known_schedules();

Schedule parse_schedule(std::string_view name);

// From 1 to 0 along a half cosine while `progress` goes from 0 to 1.
double half_cosine(double progress);

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
