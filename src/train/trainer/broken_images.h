// The training images of a run that could not be read, and were replaced.
//
// Threads: single-threaded; summary() is a collective.
// Errors:  those of collectives.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>

#include "lockstep/comm/process_group.h"
#include "lockstep/data/loader.h"

namespace lockstep {

class BrokenImages {
 public:
  void add(std::span<const BrokenSample> samples);

  // Counts all ranks' images, in a sentence with the error of the first;
  // nothing if all could be read. Every rank gets the same.
  std::optional<std::string> summary(ProcessGroup& group) const;

 private:
  std::map<std::int64_t, std::string> messages_{};  // by index, of this rank
};

}  // namespace lockstep
