// The memory limit of this process's control group.
//
// Threads: any thread.
// Errors:  none; an unreadable file sets no limit.
#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>

namespace lockstep {

// The smallest limit, in bytes, of the process's memory cgroup and its
// ancestors (version 1 or 2); nothing without a limit. `process` is the
// process's folder in /proc, `groups` the mount point of the hierarchies.
std::optional<std::size_t> memory_limit(
    const std::filesystem::path& process = "/proc/self",
    const std::filesystem::path& groups = "/sys/fs/cgroup");

}  // namespace lockstep
