#include "apps/trainer/loop/learning_rate.h"

#include <cmath>
#include <string>

#include "lockstep/base/error.h"
#include "src/planning/rate_curves.h"

namespace lockstep {
namespace {

constexpr double kWarmUpShare = 0.2;  // of one cycle

[[noreturn]] void refuse_schedule(const std::string& problem) {
  throw InvalidArgument("invalid schedule of the learning rate: " + problem);
}

void check_warm_up(const ScheduleOptions& options, int epochs) {
  const double length = options.warmup_epochs;
  if (length != 0 && parse_schedule(options.name) == Schedule::kOneCycle)
    refuse_schedule(options.name + " has a warm-up of its own; omit the other");
  if (!(length >= 0 && length < epochs))
    refuse_schedule("a warm-up of " + std::to_string(length) +
                    " epochs in a run of " + std::to_string(epochs) +
                    "; it must be at least 0 and shorter than the run");
  if (!(options.warmup_decay >= 0 && options.warmup_decay <= 1))
    refuse_schedule("a warm-up cannot begin at " +
                    std::to_string(options.warmup_decay) +
                    " times the full rate; it must be from 0 to 1 times");
}

}  // namespace

LearningRate::LearningRate(const ScheduleOptions& options, double full_rate,
                           int epochs)
    : options_(options),
      schedule_(parse_schedule(options.name)),
      full_rate_(full_rate),
      epochs_(epochs) {
  check_warm_up(options, epochs);
  if (schedule_ == Schedule::kStep &&
      !(options.step_size >= 1 && options.gamma > 0 &&
        std::isfinite(options.gamma)))
    refuse_schedule(
        "the rate drops every " + std::to_string(options.step_size) +
        " epochs, to " + std::to_string(options.gamma) +
        " times its value; the first must be at least 1, the second above 0");
  if (schedule_ == Schedule::kCosine &&
      !(options.min_rate >= 0 && options.min_rate <= full_rate))
    refuse_schedule("the lowest rate is " + std::to_string(options.min_rate) +
                    "; it must be from 0 to the full rate, " +
                    std::to_string(full_rate));
}

double LearningRate::at(std::int64_t step, std::int64_t steps_per_epoch) const {
  const std::int64_t warm_up = std::llround(
      options_.warmup_epochs * static_cast<double>(steps_per_epoch));
  if (step < warm_up)
    return full_rate_ * linear_warm_up(options_.warmup_decay, step, warm_up);
  const std::int64_t since = step - warm_up;
  const auto steps = static_cast<double>(epochs_ * steps_per_epoch - warm_up);
  switch (schedule_) {
    case Schedule::kConstant:
      break;
    case Schedule::kOneCycle:
      return one_cycle(static_cast<double>(since), steps);
    case Schedule::kStep: {
      const std::int64_t falls = since / (options_.step_size * steps_per_epoch);
      return full_rate_ * std::pow(options_.gamma, static_cast<double>(falls));
    }
    case Schedule::kCosine:
      return cosine(static_cast<double>(since), steps);
  }
  return full_rate_;
}

double LearningRate::cosine(double step, double steps) const {
  const double least = options_.min_rate;
  return least + (full_rate_ - least) * half_cosine(step / steps);
}

double LearningRate::one_cycle(double step, double steps) const {
  const double warm_up = std::ceil(kWarmUpShare * steps);
  if (step < warm_up) return full_rate_ * ((step + 1) / warm_up);
  return full_rate_ * half_cosine((step - warm_up) / (steps - warm_up));
}

}  // namespace lockstep
