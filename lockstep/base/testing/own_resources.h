// What this process holds of the kernel, for tests that nothing is left behind.
//
// Threads: asks the kernel anew at each call; may be called from any thread.
#pragma once

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>

namespace lockstep {

// One of them is that which the count itself takes.
inline std::size_t count_descriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(begin(all), end(all)));
}

// Whether the thread that /proc has as `folder` is on its way out: the kernel
// wakes who joins a thread before it takes the thread off the list, which on a
// busy machine can be seen.
inline bool is_exiting(const std::filesystem::path& folder) {
  constexpr unsigned kExiting = 4;  // PF_EXITING in the kernel's sched.h
  std::ifstream file(folder / "stat");
  // The name, which may hold anything, ends with the last bracket.
  std::string line;
  if (!std::getline(file, line)) return true;
  std::istringstream after_name(line.substr(line.rfind(')') + 1));
  std::string skipped;
  unsigned flags = 0;
  for (int field = 0; field < 6; ++field) after_name >> skipped;
  after_name >> flags;
  return (flags & kExiting) != 0;
}

// Those that run; a joined one is not among them.
inline std::size_t count_threads() {
  std::size_t count = 0;
  for (const auto& thread :
       std::filesystem::directory_iterator("/proc/self/task"))
    count += !is_exiting(thread.path());
  return count;
}

}  // namespace lockstep
