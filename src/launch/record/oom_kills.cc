#include "src/launch/record/oom_kills.h"

#include <charconv>
#include <cstddef>
#include <string>

#include "lockstep/base/error.h"
#include "src/base/text_file.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

// Empty where the file cannot be read.
std::string text_of(const fs::path& file) try {
  constexpr std::size_t kMost = std::size_t{1} << 20U;  // bytes
  return read_text_file(file, kMost);
} catch (const Error&) {
  return {};
}

std::optional<std::int64_t> kills_of_own_group(const OomCounters& counters) {
  for (const ControlGroup& group : control_groups("memory", counters.groups)) {
    const bool is_version1 = group.version == 1;
    // The root of version 1 may be that of the whole host.
    if (is_version1 && group.folders.size() == 1) continue;
    const char* file = is_version1 ? "memory.oom_control" : "memory.events";
    for (const fs::path& folder : {group.folders.front(), group.folders.back()})
      if (const auto count = oom_kills_in(text_of(folder / file))) return count;
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::int64_t> oom_kills_in(std::string_view counters) {
  constexpr std::string_view kName = "\noom_kill ";
  const std::size_t place = counters.find(kName);
  if (place == std::string_view::npos) return std::nullopt;
  const std::string_view number = counters.substr(place + kName.size());
  std::int64_t count = 0;
  const auto [stop, error] =
      std::from_chars(number.data(), number.data() + number.size(), count);
  if (error != std::errc()) return std::nullopt;
  return count;
}

std::optional<OomKills> count_oom_kills(const OomCounters& counters) {
  if (const auto count = kills_of_own_group(counters))
    return OomKills{.count = *count, .of = OomKills::Of::kGroup};
  if (const auto count = oom_kills_in(text_of(counters.host)))
    return OomKills{.count = *count, .of = OomKills::Of::kHost};
  return std::nullopt;
}

}  // namespace lockstep
