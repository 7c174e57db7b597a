// How many processes the kernel has killed because memory ran out: those of
// this process's control group, or else of this host since it booted.
//
// Threads: any thread.
// Errors:  none; nothing where the kernel does not count (Linux before 4.13, or
//          /proc is hidden).
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string_view>

#include "src/base/control_groups.h"

namespace lockstep {

struct OomKills {
  // kHost: any program's, so one of them need not be a rank.
  enum class Of { kGroup, kHost };

  std::int64_t count = 0;
  Of of = Of::kHost;
};

// Where the kernel tells it; tests use files of their own.
struct OomCounters {
  ControlGroupPlaces groups = {};
  std::filesystem::path host = "/proc/vmstat";
};

std::optional<OomKills> count_oom_kills(const OomCounters& counters = {});

// The count in the text of /proc/vmstat, of a group's memory.events, or of its
// memory.oom_control (version 1).
std::optional<std::int64_t> oom_kills_in(std::string_view counters);

}  // namespace lockstep
