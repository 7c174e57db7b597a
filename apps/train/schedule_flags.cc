#include "apps/train/schedule_flags.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "apps/job/flags.h"
#include "lockstep/base/error.h"
#include "src/base/name_table.h"

namespace lockstep {
namespace {

constexpr double kNoLargest = std::numeric_limits<double>::infinity();

// The names of the schedules that have no warm-up of their own.
std::string schedules_with_warmup(std::string_view conjunction) {
  std::vector<std::string> names;
  for (const auto& row : kSchedules)
    if (row.value != Schedule::kOneCycle) names.emplace_back(row.name);
  return listed(names, conjunction);
}

void add_warmup_flags(CLI::App& command, ScheduleOptions& schedule) {
  command
      .add_option(
          "--lr-warmup-epochs", schedule.warmup_epochs,
          fmt::format("Epochs, or a part of one, over which the rate "
                      "rises linearly before {} begins [{}]",
                      schedules_with_warmup("or"), schedule.warmup_epochs))
      ->check(number(0, kNoLargest));
  command
      .add_option("--lr-warmup-decay", schedule.warmup_decay,
                  fmt::format("Factor on the rate at the first step of the "
                              "warm-up [{}]",
                              schedule.warmup_decay))
      ->check(number(0, 1));
}

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

void add_schedule_flags(CLI::App& command, TrainOptions& options) {
  ScheduleOptions& schedule = options.schedule;
  command.add_option("--schedule", schedule.name, list_names(kSchedules))
      ->check(one_of("schedule", names_in(kSchedules)))
      ->capture_default_str();
  command
      .add_option("--lr-step-size", schedule.step_size,
                  fmt::format("step: epochs after which the rate drops [{}]",
                              schedule.step_size))
      ->check(whole_number(1));
  command
      .add_option("--lr-gamma", schedule.gamma,
                  fmt::format("step: factor of each drop [{}]", schedule.gamma))
      ->check(positive_number());
  command
      .add_option("--lr-min", schedule.min_rate,
                  fmt::format("cosine: the rate at the end of the run [{}]",
                              schedule.min_rate))
      ->check(number(0, kNoLargest));
  add_warmup_flags(command, schedule);
}

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
