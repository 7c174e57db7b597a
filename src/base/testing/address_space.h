// Sizes and limits this process's address space, for tests of what the kernel
// refuses.
//
// Threads: any thread.
#pragma once

#include <sys/resource.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>

namespace lockstep {

// In bytes, now.
inline std::uint64_t address_space() {
  const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  std::uint64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * page;
}

// Lets the address space grow by `more` bytes at most, for good: call it in a
// process of its own. Returns whether the kernel took the limit.
inline bool limit_address_space(std::uint64_t more) {
  const std::uint64_t most = address_space() + more;
  const rlimit limits{most, most};
  return ::setrlimit(RLIMIT_AS, &limits) == 0;
}

}  // namespace lockstep
