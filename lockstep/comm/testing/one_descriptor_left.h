// The process may open one more file descriptor, and any that it closes again,
// while this lives.
//
// Threads: one at a time; the limit is the process's.
#pragma once

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "lockstep/net/file_descriptor.h"

namespace lockstep {

class OneDescriptorLeft {
 public:
  OneDescriptorLeft() {
    int highest = 0;
    for (const auto& entry :
         std::filesystem::directory_iterator("/proc/self/fd"))
      highest = std::max(highest, std::stoi(entry.path().filename().string()));
    // The limit is one of numbers: none may be free below those in use.
    do {
      fillers_.emplace_back(::dup(STDERR_FILENO));
    } while (fillers_.back().get() < highest);
    ::getrlimit(RLIMIT_NOFILE, &before_);
    const rlimit limit{static_cast<rlim_t>(fillers_.back().get()) + 2,
                       before_.rlim_max};
    ::setrlimit(RLIMIT_NOFILE, &limit);
  }
  ~OneDescriptorLeft() { ::setrlimit(RLIMIT_NOFILE, &before_); }
  OneDescriptorLeft(const OneDescriptorLeft&) = delete;
  OneDescriptorLeft& operator=(const OneDescriptorLeft&) = delete;

 private:
  std::vector<FileDescriptor> fillers_;
  rlimit before_{};
};

}  // namespace lockstep
