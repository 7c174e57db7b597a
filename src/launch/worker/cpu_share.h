// The cores that a job may use.
//
// Threads: any thread.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

namespace lockstep {

// The cores (as the kernel numbers logical CPUs) that this process may run on,
// in ascending order. Empty when the kernel does not tell.
std::vector<int> allowed_cores();

// How many cores' worth of time this process may use: the number of
// allowed_cores(), or less under a control group's quota. At least 1.
int usable_cores();

// The quota of a cpu.max file of control groups (version 2), in cores; nothing
// when it sets no limit or cannot be read.
std::optional<double> parse_cpu_quota(std::string_view text);

}  // namespace lockstep
