// The control groups of this process, and the limits that they set.
//
// Threads: any thread.
// Errors:  none; an unreadable file sets no limit.
#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace lockstep {

struct ControlGroup {
  int version;  // of its hierarchy
  // Its own, and those of the groups above it up to the root. In a container
  // the others may exist only on the host; then only the root has files.
  std::vector<std::filesystem::path> folders;
};

// Where the kernel tells it; tests use files of their own.
struct ControlGroupPlaces {
  std::filesystem::path process = "/proc/self";
  std::filesystem::path groups = "/sys/fs/cgroup";
};

// The group of version 2, and that of `controller` in version 1.
std::vector<ControlGroup> control_groups(const std::string& controller,
                                         const ControlGroupPlaces& places = {});

// The smallest limit of the process's group and its ancestors; nothing without
// a limit. Of memory, in bytes, and of the number of threads.
std::optional<std::size_t> memory_limit(const ControlGroupPlaces& places = {});
std::optional<std::size_t> thread_limit(const ControlGroupPlaces& places = {});

}  // namespace lockstep
