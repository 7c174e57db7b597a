// The cores that a job may use, and the share of each worker.
//
// Threads: any thread.
#pragma once

#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace lockstep {

// The cores (as the kernel numbers logical CPUs) that this process may run on;
// siblings of a physical core stand side by side. Empty when the kernel does
// not tell.
std::vector<int> allowed_cores();

// How many cores' worth of time this process may use: the number of
// allowed_cores(), or less under a control group's quota. At least 1.
int usable_cores();

// Divides `cores` into one share per worker: neighbours, as even as possible.
// Empty when there are fewer cores than workers.
std::vector<std::vector<int>> divide_cores(std::span<const int> cores,
                                           int workers);

// Whether each worker runs on its own share of the cores. It applies when
// several workers have a core each and no control group's quota limits the
// cores' time.
enum class CpuBinding { kCores, kNone };

// The cores of each worker; empty where workers are not bound.
std::vector<std::vector<int>> shares_of_cores(CpuBinding binding, int workers);

// The quota of a cpu.max file of control groups (version 2), in cores; nothing
// when it sets no limit or cannot be read.
std::optional<double> parse_cpu_quota(std::string_view text);

}  // namespace lockstep
