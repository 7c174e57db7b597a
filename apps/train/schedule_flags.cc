#include "apps/train/schedule_flags.h"

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "src/base/name_table.h"

namespace lockstep {
namespace {

// Flags that the other schedules ignore.
void check_own_flags(const TrainOptions& options) {
  const auto require = [&](const char* flag, Schedule schedule) {
    if (options.given.contains(flag) &&
        parse_schedule(options.schedule.name) != schedule)
      throw InvalidArgument(
          fmt::format("{} is for --schedule {}; the schedule is {}", flag,
                      name_of(kSchedules, schedule), options.schedule.name));
  };
  require("--lr-step-size", Schedule::kStep);
  require("--lr-gamma", Schedule::kStep);
  require("--lr-min", Schedule::kCosine);
}

void check_warmup(const TrainOptions& options) {
  const double length = options.schedule.warmup_epochs;
  if (options.given.contains("--lr-warmup-decay") && length == 0)
    throw InvalidArgument(
        "--lr-warmup-decay needs --lr-warmup-epochs, the length of the "
        "warm-up");
  const Schedule schedule = parse_schedule(options.schedule.name);
  if (length > 0 && schedule == Schedule::kOneCycle)
    throw InvalidArgument(
        fmt::format("--lr-warmup-epochs is for --schedule {}; {} warms up by "
                    "itself",
                    schedules_with_warmup("and"), options.schedule.name));
  if (length >= options.epochs)
    throw InvalidArgument(fmt::format(
        "--lr-warmup-epochs {} leaves nothing of the {} epochs for the "
        "schedule: use less, or more --epochs",
        length, options.epochs));
}

}  // namespace

void check_schedule_flags(const TrainOptions& options) {
  check_own_flags(options);
  check_warmup(options);
  const ScheduleOptions& schedule = options.schedule;
  const double rate = learning_rate_of(options);
  if (schedule.min_rate > rate)
    throw InvalidArgument(
        fmt::format("--lr-min {} is above --lr {}, from which the rate falls",
                    schedule.min_rate, rate));
  if (parse_schedule(schedule.name) == Schedule::kStep &&
      !options.given.contains("--lr-step-size") &&
      options.epochs - schedule.warmup_epochs <= schedule.step_size)
    throw InvalidArgument(
        fmt::format("--schedule step drops the rate every {} epochs, which a "
                    "run of {} does not reach: give --lr-step-size",
                    schedule.step_size, options.epochs));
}

}  // namespace lockstep
