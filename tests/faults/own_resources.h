// The resources of this process that a group may take and must give back.
//
// Threads: any thread, while no group lives.
#pragma once

#include <cstddef>
#include <string>

namespace lockstep {

struct OwnResources {
  std::size_t descriptors = 0;
  std::size_t shared_mappings = 0;  // of memfds and of files in /dev/shm
  std::size_t threads = 0;

  static OwnResources count();

  // "3 descriptors, 1 shared mapping": the resources that were not in
  // `earlier`; "" without any.
  std::string more_than(const OwnResources& earlier) const;
};

}  // namespace lockstep
