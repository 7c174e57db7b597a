// How much memory the control group of this process may have.
//
// Threads: any.
// Errors:  none: what cannot be read sets no limit.
#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>

namespace lockstep {

// The least limit, in bytes, of the process's memory cgroup and of those above
// it, of version 1 or 2; nothing without one. `process` is the process's folder
// in /proc, `groups` where the hierarchies are mounted.
std::optional<std::size_t> memory_limit(
    const std::filesystem::path& process = "/proc/self",
    const std::filesystem::path& groups = "/sys/fs/cgroup");

}  // namespace lockstep
