// Which parameters got no gradient in a pass, on every rank: what the ranks
// tell each other when the buckets have said that some rank misses some.
//
// Threads: values. Made by every rank of the group at the same point.
// Errors:  what ProcessGroup's operations throw.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "lockstep/comm/process_group.h"

namespace lockstep {

class MissingGradients {
 public:
  enum class Mark : std::uint8_t {
    kArrived,
    kMissing,
    kAbsent,  // this rank has no pass of its own: see RollCall
  };

  // Gathers every rank's marks, one a parameter.
  MissingGradients(ProcessGroup& group, std::span<const Mark> marks);

  // Whether the parameter got no gradient on any rank.
  bool everywhere(std::size_t parameter) const;

  // A line of an error for each set of ranks that misses the same, with the
  // parameters' names and the ranks.
  std::string lines(std::span<const std::string> names) const;

 private:
  std::span<const std::uint8_t> of_rank(std::size_t rank) const;

  std::size_t parameters_;
  std::size_t ranks_;
  std::vector<std::uint8_t> marks_;  // of rank 0, of rank 1, …
};

}  // namespace lockstep
