// Counts this process's descriptors and threads, for tests that check for
// leaks.
//
// Threads: any thread; every call asks the kernel again.
#pragma once

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>

namespace lockstep {

// The count includes the descriptor that the counting itself opens.
inline std::size_t count_descriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(begin(all), end(all)));
}

// Whether the thread of `folder` in /proc is exiting. The kernel wakes the
// joining thread before it removes the joined one from the list; a busy machine
// shows the gap.
inline bool is_exiting(const std::filesystem::path& folder) {
  constexpr unsigned kExiting = 4;  // PF_EXITING in the kernel's sched.h
  std::ifstream file(folder / "stat");
  // The name may hold any character; it ends with the last bracket.
  std::string line;
  if (!std::getline(file, line)) return true;
  std::istringstream after_name(line.substr(line.rfind(')') + 1));
  std::string skipped;
  unsigned flags = 0;
  for (int field = 0; field < 6; ++field) after_name >> skipped;
  after_name >> flags;
  return (flags & kExiting) != 0;
}

// Running threads; a joined thread does not count.
inline std::size_t count_threads() {
  std::size_t count = 0;
  for (const auto& thread :
       std::filesystem::directory_iterator("/proc/self/task"))
    count += !is_exiting(thread.path());
  return count;
}

}  // namespace lockstep
