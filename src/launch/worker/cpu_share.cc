#include "src/launch/worker/cpu_share.h"

#include <sched.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "src/base/control_groups.h"

namespace lockstep {
namespace {

// The smallest quota of the group and its ancestors, in version 2.
std::optional<double> cpu_quota() {
  std::optional<double> least;
  for (const ControlGroup& group : control_groups("cpu"))
    for (const std::filesystem::path& folder : group.folders) {
      std::string text;
      std::getline(std::ifstream(folder / "cpu.max"), text);
      if (const auto quota = parse_cpu_quota(text))
        least = std::min(least.value_or(*quota), *quota);
    }
  return least;
}

}  // namespace

std::vector<int> allowed_cores() {
  cpu_set_t set;
  if (::sched_getaffinity(0, sizeof set, &set) != 0) return {};
  std::vector<int> cores;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
    if (CPU_ISSET(cpu, &set)) cores.push_back(cpu);
  return cores;
}

int usable_cores() {
  int cores = static_cast<int>(allowed_cores().size());
  if (cores == 0) cores = static_cast<int>(std::thread::hardware_concurrency());
  if (const auto quota = cpu_quota())
    cores = std::min(cores, static_cast<int>(std::ceil(*quota)));
  return std::max(cores, 1);
}

std::optional<double> parse_cpu_quota(std::string_view text) {
  double quota = 0;
  double period = 0;
  const char* end = text.data() + text.size();
  const auto first = std::from_chars(text.data(), end, quota);
  if (first.ec != std::errc() || first.ptr == end) return std::nullopt;
  const auto second = std::from_chars(first.ptr + 1, end, period);
  if (second.ec != std::errc() || !(quota > 0) || !(period > 0))
    return std::nullopt;
  return quota / period;
}

}  // namespace lockstep
