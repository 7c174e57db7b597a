#include <algorithm>
#include <string>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/comm/groups.h"
#include "lockstep/torch/comm_hooks.h"
#include "src/torch/ddp/replicate.h"

namespace lockstep {
namespace {

using Levels = std::vector<HierarchicalModelAveragerOptions::Level>;

void check_schedule(std::int64_t period, std::int64_t warmup_steps) {
  if (period < 1)
    throw InvalidArgument("a model averager: the period is " +
                          std::to_string(period) + "; it must be at least 1");
  if (warmup_steps < 0)
    throw InvalidArgument("a model averager: warmup_steps is negative");
}

std::string describe(const Levels::value_type& level) {
  return "{period " + std::to_string(level.period) + ", group size " +
         std::to_string(level.group_size) + "}";
}

void check_levels(const Levels& levels, int ranks) {
  const auto refuse = [](const std::string& why) {
    throw InvalidArgument(
        "HierarchicalModelAverager: " + why +
        "\n  next:    give levels with increasing periods and group sizes; "
        "the last level must have all ranks");
  };
  if (levels.empty()) refuse("the list of levels is empty");
  for (std::size_t i = 0; i < levels.size(); ++i) {
    const auto& [period, group_size] = levels[i];
    if (group_size < 1 || ranks % group_size != 0)
      refuse("groups of " + std::to_string(group_size) + " do not divide " +
             std::to_string(ranks) + " ranks");
    if (i > 0 && (period <= levels[i - 1].period ||
                  group_size <= levels[i - 1].group_size))
      refuse("level " + describe(levels[i]) + " comes after " +
             describe(levels[i - 1]));
  }
  if (levels.back().group_size != ranks)
    refuse("the last level has groups of " +
           std::to_string(levels.back().group_size) + " and not of all " +
           std::to_string(ranks) + " ranks");
}

}  // namespace

PeriodicModelAverager::PeriodicModelAverager(
    PeriodicModelAveragerOptions options)
    : options_(std::move(options)) {
  check_schedule(options_.period, options_.warmup_steps);
  if (!options_.group) options_.group = default_group();
}

void PeriodicModelAverager::average_parameters(at::TensorList parameters) {
  const std::int64_t local_steps = step_++ - options_.warmup_steps;
  if (local_steps >= 0 && local_steps % options_.period == 0)
    average_tensors(*options_.group, parameters);
}

HierarchicalModelAverager::HierarchicalModelAverager(
    const HierarchicalModelAveragerOptions& options)
    : warmup_steps_(options.warmup_steps) {
  const auto all = options.group ? options.group : default_group();
  check_levels(options.levels, all->size());
  for (const auto& [period, group_size] : options.levels) {
    check_schedule(period, warmup_steps_);
    levels_.push_back(
        {period, group_size == all->size()
                     ? all
                     : split(*all, {.color = all->rank() / group_size})});
  }
}

void HierarchicalModelAverager::average_parameters(at::TensorList parameters) {
  const std::int64_t step = step_++;
  if (step < warmup_steps_) return;
  const auto is_due = [&](const Level& level) {
    return step % level.period == 0;
  };
  const auto level = std::find_if(levels_.rbegin(), levels_.rend(), is_due);
  if (level != levels_.rend()) average_tensors(*level->group, parameters);
}

}  // namespace lockstep
