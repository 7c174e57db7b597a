// Which parameters got no gradient in a pass, or a sparse one, on every rank:
// what the ranks tell each other when the buckets have said that some rank has
// to tell something.
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
    kAbsent,  // this rank has no pass of its own: see JoinCoordinator
    kSparse,  // arrived, sparse; the values above it count its dimensions
  };
  // Of a gradient that arrived with so many dimensions of indices; 0: dense.
  static Mark sparse_mark(std::uint8_t dimensions);

  // Gathers every rank's marks, one a parameter.
  MissingGradients(ProcessGroup& group, std::span<const Mark> marks);

  // Whether the parameter got no gradient on any rank.
  bool everywhere(std::size_t parameter) const;
  // Whether any parameter got none on any rank that has a pass.
  bool some_missing() const;
  // The most dimensions of indices that a rank's gradient of it has; 0 where
  // all are dense.
  std::uint8_t sparse_dimensions(std::size_t parameter) const;

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
