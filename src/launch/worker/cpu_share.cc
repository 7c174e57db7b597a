#include "src/launch/worker/cpu_share.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <tuple>

namespace lockstep {
namespace {

int read_number(const std::string& path) {
  int number = -1;
  std::ifstream(path) >> number;
  return number;
}

// Orders logical CPUs by their physical core.
std::tuple<int, int, int> place_of(int cpu) {
  const std::string topology =
      fmt::format("/sys/devices/system/cpu/cpu{}/topology/", cpu);
  return {read_number(topology + "physical_package_id"),
          read_number(topology + "core_id"), cpu};
}

// This process's group in the hierarchy of version 2: "/a/b".
std::string control_group() {
  std::ifstream file("/proc/self/cgroup");
  constexpr std::string_view kVersion2 = "0::";
  for (std::string line; std::getline(file, line);)
    if (line.starts_with(kVersion2)) return line.substr(kVersion2.size());
  return "/";
}

// The smallest quota of the group and its ancestors.
std::optional<double> cpu_quota() {
  std::optional<double> least;
  std::string group = control_group();
  for (;;) {
    std::ifstream file("/sys/fs/cgroup" + group + "/cpu.max");
    std::ostringstream text;
    text << file.rdbuf();
    const auto quota = parse_cpu_quota(text.str());
    if (quota) least = std::min(least.value_or(*quota), *quota);
    if (group.empty()) return least;
    group.erase(group.rfind('/'));
  }
}

}  // namespace

std::vector<int> allowed_cores() {
  cpu_set_t set;
  if (::sched_getaffinity(0, sizeof set, &set) != 0) return {};
  std::vector<std::tuple<int, int, int>> places;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
    if (CPU_ISSET(cpu, &set)) places.push_back(place_of(cpu));
  std::sort(places.begin(), places.end());
  std::vector<int> cores;
  cores.reserve(places.size());
  for (const auto& place : places) cores.push_back(std::get<2>(place));
  return cores;
}

int usable_cores() {
  int cores = static_cast<int>(allowed_cores().size());
  if (cores == 0) cores = static_cast<int>(std::thread::hardware_concurrency());
  if (const auto quota = cpu_quota())
    cores = std::min(cores, static_cast<int>(std::ceil(*quota)));
  return std::max(cores, 1);
}

std::vector<std::vector<int>> divide_cores(std::span<const int> cores,
                                           int workers) {
  const auto count = static_cast<std::size_t>(std::max(workers, 0));
  if (count == 0 || cores.size() < count) return {};
  std::vector<std::vector<int>> shares(count);
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t begin = i * cores.size() / count;
    const std::size_t end = (i + 1) * cores.size() / count;
    shares[i].assign(cores.begin() + static_cast<std::ptrdiff_t>(begin),
                     cores.begin() + static_cast<std::ptrdiff_t>(end));
  }
  return shares;
}

std::vector<std::vector<int>> shares_of_cores(CpuBinding binding, int workers) {
  if (binding == CpuBinding::kNone || workers == 1) return {};
  const std::vector<int> cores = allowed_cores();
  // Under a quota other processes share the cores, and the launcher cannot know
  // which.
  if (usable_cores() < static_cast<int>(cores.size())) return {};
  return divide_cores(cores, workers);
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
