// What this process holds that a group may have taken and must give back.
//
// Threads: asks the kernel; meant to be called while no group lives.
#pragma once

#include <cstddef>
#include <string>

namespace lockstep {

struct OwnResources {
  std::size_t descriptors = 0;
  std::size_t shared_mappings = 0;  // of memfds and of files in /dev/shm
  std::size_t threads = 0;

  static OwnResources count();

  // "3 descriptors, 1 shared mapping" that are here and were not in `earlier`;
  // "" when there is nothing.
  std::string more_than(const OwnResources& earlier) const;
};

}  // namespace lockstep
