#include "src/base/control_groups.h"

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <string>
#include <utility>

namespace lockstep {
namespace {

namespace fs = std::filesystem;

// For "no limit" version 1 has the greatest whole page, version 2 "max".
constexpr std::uint64_t kNoLimit = std::uint64_t{1} << 62;

std::optional<std::size_t> least_limit(const std::vector<ControlGroup>& groups,
                                       const char* file_of_version1,
                                       const char* file_of_version2) {
  std::optional<std::size_t> least;
  for (const ControlGroup& group : groups) {
    const char* file = group.version == 1 ? file_of_version1 : file_of_version2;
    for (const fs::path& folder : group.folders)
      if (std::uint64_t limit = 0;
          std::ifstream(folder / file) >> limit && limit < kNoLimit)
        least = std::min<std::size_t>(least.value_or(limit), limit);
  }
  return least;
}

}  // namespace

std::vector<ControlGroup> control_groups(const std::string& controller,
                                         const ControlGroupPlaces& places) {
  std::vector<ControlGroup> groups;
  std::ifstream lines(places.process / "cgroup");
  // "HIERARCHY:CONTROLLERS:PATH"; version 2 has no controllers there.
  for (std::string line; std::getline(lines, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers =
        "," + line.substr(first + 1, second - first - 1) + ",";
    const bool is_version2 = controllers == ",,";
    if (!is_version2 &&
        controllers.find("," + controller + ",") == std::string::npos)
      continue;
    const fs::path root =
        is_version2 ? places.groups : places.groups / controller;
    std::vector<fs::path> folders;
    fs::path path = fs::path(line.substr(second + 1)).relative_path();
    for (; !path.empty(); path = path.parent_path())
      folders.push_back(root / path);
    folders.push_back(root);
    groups.push_back({is_version2 ? 2 : 1, std::move(folders)});
  }
  return groups;
}

std::optional<std::size_t> memory_limit(const ControlGroupPlaces& places) {
  return least_limit(control_groups("memory", places), "memory.limit_in_bytes",
                     "memory.max");
}

std::optional<std::size_t> thread_limit(const ControlGroupPlaces& places) {
  return least_limit(control_groups("pids", places), "pids.max", "pids.max");
}

}  // namespace lockstep
