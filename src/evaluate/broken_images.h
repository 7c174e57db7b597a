// The images of a run that could not be read: training images, which were
// replaced, or test images, which were left out.
//
// Threads: single-threaded; summary() is a collective.
// Errors:  those of collectives.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "lockstep/comm/process_group.h"
#include "lockstep/data/loader.h"

namespace lockstep {

// "training image" and "replaced by the next", or "image" and "left out".
struct BrokenWords {
  std::string_view image;
  std::string_view fate;
};

class BrokenImages {
 public:
  explicit BrokenImages(BrokenWords words) : words_(words) {}

  void add(std::span<const BrokenSample> samples);

  // All ranks' images by their index, with the first line of each error. Every
  // rank gets the same.
  std::map<std::int64_t, std::string> of_all_ranks(ProcessGroup& group) const;

  // Counts all ranks' images, in a sentence with the error of the first;
  // nothing if all could be read. Every rank gets the same.
  std::optional<std::string> summary(ProcessGroup& group) const;

 private:
  BrokenWords words_;
  std::map<std::int64_t, std::string> messages_{};  // by index, of this rank
};

}  // namespace lockstep
