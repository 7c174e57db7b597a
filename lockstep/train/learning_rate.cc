#include "lockstep/train/learning_rate.h"

#include <array>
#include <cmath>
#include <numbers>

#include "lockstep/base/error.h"
#include "lockstep/base/suggest.h"

namespace lockstep {
namespace {

constexpr std::array<std::string_view, 2> kSchedules{"one-cycle", "constant"};
constexpr double kWarmUpShare = 0.2;

double one_cycle(double step, double steps) {
  const double warm_up = std::ceil(kWarmUpShare * steps);
  if (step < warm_up) return (step + 1) / warm_up;
  const double progress = (step - warm_up) / (steps - warm_up);
  return 0.5 * (1 + std::cos(std::numbers::pi * progress));
}

}  // namespace

std::span<const std::string_view> known_schedules() { return kSchedules; }

Schedule parse_schedule(std::string_view name) {
  if (name == "one-cycle") return Schedule::kOneCycle;
  if (name == "constant") return Schedule::kConstant;
  throw InvalidArgument(unknown_name("schedule", name, kSchedules));
}

double learning_rate_factor(Schedule schedule, std::int64_t step,
                            std::int64_t steps) {
  switch (schedule) {
    case Schedule::kConstant:
      return 1;
    case Schedule::kOneCycle:
      return one_cycle(static_cast<double>(step), static_cast<double>(steps));
  }
  return 1;
}

}  // namespace lockstep
