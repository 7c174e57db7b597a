// Which cores a job may use, and which of them are whose.
//
// Threads: pure functions, but for those that ask the kernel.
#pragma once

#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace lockstep {

// The cores (as the kernel numbers logical CPUs) that this process may run on;
// those that share a physical core stand side by side. Empty when the kernel
// does not say.
std::vector<int> allowed_cores();

// How many cores' worth of time this process may use: the number of
// allowed_cores(), or less where a control group's quota says so. At least 1.
int usable_cores();

// A share of `cores` for each of `workers`: neighbours, as even as can be.
// Nothing where there are fewer cores than workers.
std::vector<std::vector<int>> divide_cores(std::span<const int> cores,
                                           int workers);

// What a cpu.max file of control groups (version 2) grants, in cores; nothing
// when it sets no limit or cannot be read.
std::optional<double> parse_cpu_quota(std::string_view text);

}  // namespace lockstep
