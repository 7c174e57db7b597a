// The learning rate over the steps of a run.
//
// Threads: pure functions.
// Errors:  InvalidArgument for an unknown name.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace lockstep {

enum class Schedule {
  kConstant,
  // Rises linearly to the full rate over the first fifth of the steps, then
  // falls along a half cosine to zero: "one cycle" (Smith and Topin, 2018),
  // with the annealing of Loshchilov and Hutter, 2017.
  kOneCycle,
};

// The names that parse_schedule() takes: "one-cycle", "constant".
std::span<const std::string_view> known_schedules();

Schedule parse_schedule(std::string_view name);

// What the rate at `step`, counted from 0 over the whole run of `steps` steps,
// is to the full rate: 0 … 1.
double learning_rate_factor(Schedule schedule, std::int64_t step,
                            std::int64_t steps);

}  // namespace lockstep
