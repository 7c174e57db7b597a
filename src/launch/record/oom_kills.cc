#include "src/launch/record/oom_kills.h"

#include <charconv>
#include <cstddef>
#include <sstream>
#include <string>

#include "lockstep/base/error.h"
#include "src/base/text_file.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

// Empty where the file cannot be read.
std::string text_of(const fs::path& file) try {
  constexpr std::size_t kMostBytes = std::size_t{1} << 20U;
  return read_text_file(file, kMostBytes);
} catch (const Error&) {
  return {};
}

// Of the group `path` as in /proc ("/a/b"). In a container the path may exist
// only on the host; then the group is the root of what is mounted.
std::optional<std::int64_t> kills_of_group(const fs::path& root,
                                           const fs::path& path,
                                           const char* file) {
  if (const auto count =
          oom_kills_in(text_of(root / path.relative_path() / file)))
    return count;
  return oom_kills_in(text_of(root / file));
}

std::optional<std::int64_t> kills_of_own_group(const OomCounters& counters) {
  std::istringstream lines(text_of(counters.process / "cgroup"));
  // "HIERARCHY:CONTROLLERS:PATH"; version 2 has no controllers there.
  for (std::string line; std::getline(lines, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers =
        "," + line.substr(first + 1, second - first - 1) + ",";
    const std::string path = line.substr(second + 1);
    std::optional<std::int64_t> count;
    if (controllers == ",,")
      count = kills_of_group(counters.groups, path, "memory.events");
    // The root of version 1 may be that of the whole host.
    if (controllers.find(",memory,") != std::string::npos && path != "/")
      count = kills_of_group(counters.groups / "memory", path,
                             "memory.oom_control");
    if (count) return count;
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
