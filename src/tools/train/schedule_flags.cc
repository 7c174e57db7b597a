#include "src/tools/train/schedule_flags.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <array>
#include <limits>
#include <string_view>

#include "lockstep/base/error.h"
#include "src/tools/job/flags.h"

namespace lockstep {
namespace {

constexpr std::array<std::string_view, 4> kSchedules{"one-cycle", "constant",
                                                     "step", "cosine"};
constexpr double kNoLimit = std::numeric_limits<double>::infinity();
constexpr int kDefaultStepSize =
    30;  // torchvision's default, like the next two
constexpr double kDefaultGamma = 0.1;
constexpr double kDefaultWarmupDecay = 0.01;

void add_warmup_flags(CLI::App& command, TrainOptions& options) {
  command
      .add_option("--lr-warmup-epochs", options.lr_warmup_epochs,
                  "Epochs, or a part of one, over which the rate rises "
                  "linearly before constant, step or cosine begins [0]")
      ->check(number(0, kNoLimit));
  command
      .add_option("--lr-warmup-decay", options.lr_warmup_decay,
                  "Factor on the rate at the first step of the warm-up [0.01]")
      ->check(number(0, 1));
}

// Flags that the other schedules ignore.
void check_own_flags(const TrainOptions& options) {
  const auto require = [&](bool given, const char* flag, const char* schedule) {
    if (given && options.schedule != schedule)
      throw InvalidArgument(
          fmt::format("{} is for --schedule {}; the schedule is {}", flag,
                      schedule, options.schedule));
  };
  require(options.lr_step_size.has_value(), "--lr-step-size", "step");
  require(options.lr_gamma.has_value(), "--lr-gamma", "step");
  require(options.lr_min.has_value(), "--lr-min", "cosine");
}

void check_warmup(const TrainOptions& options) {
  const double length = options.lr_warmup_epochs.value_or(0);
  if (options.lr_warmup_decay && length == 0)
    throw InvalidArgument(
        "--lr-warmup-decay needs --lr-warmup-epochs, the length of the "
        "warm-up");
  if (length > 0 && options.schedule == "one-cycle")
    throw InvalidArgument(
        "--lr-warmup-epochs is for --schedule constant, step and cosine; "
        "one-cycle warms up by itself");
  if (length >= options.epochs)
    throw InvalidArgument(fmt::format(
        "--lr-warmup-epochs {} leaves nothing of the {} epochs for the "
        "schedule: use less, or more --epochs",
        length, options.epochs));
}

}  // namespace

void add_schedule_flags(CLI::App& command, TrainOptions& options) {
  command
      .add_option("--schedule", options.schedule,
                  "one-cycle (the rate rises to --lr over a fifth of the run, "
                  "then falls to zero), constant, step (it drops now and "
                  "then) or cosine (it falls along a half cosine)")
      ->check(one_of("schedule", kSchedules))
      ->capture_default_str();
  command
      .add_option("--lr-step-size", options.lr_step_size,
                  "step: epochs after which the rate drops [30]")
      ->check(whole_number(1));
  command
      .add_option("--lr-gamma", options.lr_gamma,
                  "step: factor of each drop [0.1]")
      ->check(positive_number());
  command
      .add_option("--lr-min", options.lr_min,
                  "cosine: the rate at the end of the run [0]")
      ->check(number(0, kNoLimit));
  add_warmup_flags(command, options);
}

void complete_schedule_flags(TrainOptions& options) {
  check_own_flags(options);
  check_warmup(options);
  const double rate = options.learning_rate.value();
  if (options.lr_min.value_or(0) > rate)
    throw InvalidArgument(
        fmt::format("--lr-min {} is above --lr {}, from which the rate falls",
                    *options.lr_min, rate));
  if (options.schedule == "step" && !options.lr_step_size &&
      options.epochs - options.lr_warmup_epochs.value_or(0) <= kDefaultStepSize)
    throw InvalidArgument(
        fmt::format("--schedule step drops the rate every {} epochs, which a "
                    "run of {} does not reach: give --lr-step-size",
                    kDefaultStepSize, options.epochs));
  if (!options.lr_step_size) options.lr_step_size = kDefaultStepSize;
  if (!options.lr_gamma) options.lr_gamma = kDefaultGamma;
  if (!options.lr_min) options.lr_min = 0;
  if (!options.lr_warmup_epochs) options.lr_warmup_epochs = 0;
  if (!options.lr_warmup_decay) options.lr_warmup_decay = kDefaultWarmupDecay;
}

}  // namespace lockstep
