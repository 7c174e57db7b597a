// How many processes the kernel has killed because memory ran out, on this host
// and since it booted.
//
// Threads: any thread.
// Errors:  none; nothing where the kernel does not count (Linux before 4.13, or
//          /proc is hidden).
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace lockstep {

std::optional<std::int64_t> count_oom_kills();

// The count in the text of /proc/vmstat.
std::optional<std::int64_t> oom_kills_in(std::string_view vmstat);

}  // namespace lockstep
