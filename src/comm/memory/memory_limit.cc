#include "src/comm/memory/memory_limit.h"

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <string>
#include <string_view>

namespace lockstep {
namespace {

// For "no limit" version 1 has the greatest whole page, version 2 "max".
constexpr std::uint64_t kNoLimit = std::uint64_t{1} << 62;

void lower_to(std::optional<std::size_t>& limit,
              const std::filesystem::path& file) {
  std::uint64_t bytes = 0;
  if (!(std::ifstream(file) >> bytes) || bytes >= kNoLimit) return;
  limit = limit ? std::min<std::size_t>(*limit, bytes) : bytes;
}

// From `group`, as in /proc ("/a/b"), up to the root. In a container the path
// may exist only on the host; then only the root has a file.
void lower_to_those_of(std::optional<std::size_t>& limit,
                       const std::filesystem::path& root,
                       std::filesystem::path group, const char* file) {
  group = group.relative_path();
  while (true) {
    lower_to(limit, root / group / file);
    if (group.empty()) return;
    group = group.parent_path();
  }
}

}  // namespace

std::optional<std::size_t> memory_limit(const std::filesystem::path& process,
                                        const std::filesystem::path& groups) {
  std::optional<std::size_t> limit;
  std::ifstream lines(process / "cgroup");
  // "HIERARCHY:CONTROLLERS:PATH"; version 2 has no controllers there.
  for (std::string line; std::getline(lines, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers =
        "," + line.substr(first + 1, second - first - 1) + ",";
    const std::string path = line.substr(second + 1);
    if (controllers == ",,")
      lower_to_those_of(limit, groups, path, "memory.max");
    if (controllers.find(",memory,") != std::string::npos)
      lower_to_those_of(limit, groups / "memory", path,
                        "memory.limit_in_bytes");
  }
  return limit;
}

}  // namespace lockstep
