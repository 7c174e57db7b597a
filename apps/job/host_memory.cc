#include "apps/job/host_memory.h"

#include <unistd.h>

#include <fstream>
#include <string>

namespace lockstep {

std::optional<std::uint64_t> total_memory() {
  const long pages = ::sysconf(_SC_PHYS_PAGES);
  const long bytes = ::sysconf(_SC_PAGESIZE);
  if (pages <= 0 || bytes <= 0) return std::nullopt;
  return static_cast<std::uint64_t>(pages) * static_cast<std::uint64_t>(bytes);
}

std::optional<std::uint64_t> available_memory() {
  std::ifstream stream("/proc/meminfo");
  std::string name;
  std::uint64_t kilobytes = 0;
  std::string unit;
  while (stream >> name >> kilobytes >> unit)
    if (name == "MemAvailable:") return kilobytes * 1024;
  return std::nullopt;
}

}  // namespace lockstep
