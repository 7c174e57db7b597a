// The parts of a bucket that each rank receives when ranks own shards of the
// parameters: a shard plan and the bucket's gradients → ranges of its block.
//
// Ranges come in rounds. In a round each rank gets at most one range, so a
// round is one uneven reduce_scatter. A bucket in which each rank owns one
// contiguous range takes one round. Where a parameter is cut in the middle of a
// bucket, two ranks' parts may consist of several ranges, and the bucket takes
// several rounds.
//
// The result is a pure function of its arguments: ranks that pass the same
// arguments start the same operations.
//
// Errors:  none.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "src/planning/shard_plan.h"

namespace lockstep {

// Where a gradient lies in its bucket's block, in elements. Its elements are in
// the order of the plan.
struct GradientPlace {
  std::optional<std::size_t>
      parameter{};  // its number in the plan; nothing: in no shard
  std::size_t begin = 0;
  std::size_t elements = 0;
};

struct OwnerRanges {
  // A range of the block, in elements.
  struct Range {
    std::size_t begin = 0;
    std::size_t elements = 0;
    friend bool operator==(const Range&, const Range&) = default;
  };
  // By round, then by rank: the range that the rank gets, possibly empty.
  std::vector<std::vector<Range>> rounds{};
  // The ranges that no rank owns.
  std::vector<Range> of_nobody{};
};

// `gradients` are those of one bucket, in the order of its block. Neighbouring
// elements of one owner form one range, also across gradients.
OwnerRanges owner_ranges(const ShardPlan& plan,
                         std::span<const GradientPlace> gradients);

}  // namespace lockstep
