// While it lives, the process may open `spare` more file descriptors at a time.
//
// Threads: one thread at a time; the limit applies to the process.
#pragma once

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "src/net/file_descriptor.h"

namespace lockstep {

class ScarceDescriptors {
 public:
  explicit ScarceDescriptors(int spare) {
    int highest = 0;
    for (const auto& entry :
         std::filesystem::directory_iterator("/proc/self/fd"))
      highest = std::max(highest, std::stoi(entry.path().filename().string()));
    // The limit bounds descriptor numbers, so no lower number may be free.
    do {
      fillers_.emplace_back(::dup(STDERR_FILENO));
    } while (fillers_.back().get() < highest);
    ::getrlimit(RLIMIT_NOFILE, &before_);
    const int lowest_free = fillers_.back().get() + 1;
    const rlimit limit{static_cast<rlim_t>(lowest_free + spare),
                       before_.rlim_max};
    ::setrlimit(RLIMIT_NOFILE, &limit);
  }
  ~ScarceDescriptors() { ::setrlimit(RLIMIT_NOFILE, &before_); }
  ScarceDescriptors(const ScarceDescriptors&) = delete;
  ScarceDescriptors& operator=(const ScarceDescriptors&) = delete;

 private:
  std::vector<FileDescriptor> fillers_;
  rlimit before_{};
};

}  // namespace lockstep
