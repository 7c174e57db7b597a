// Which parts of a bucket each rank is to get where ranks own shards of the
// parameters: a shard plan and the bucket's gradients → ranges of its block.
//
// Ranges come in rounds: in one each rank gets at most one range, so that a
// round is one uneven reduce_scatter. A bucket of which each rank owns one
// stretch takes one; where a parameter is cut in the middle of a bucket, the
// two ranks' stretches may lie in several pieces, and it takes a few.
//
// The result is a pure function of its arguments: ranks that pass the same get
// the same, and so start the same operations.
//
// Threads: values and pure functions.
// Errors:  none.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "lockstep/ddp/shard_plan.h"

namespace lockstep {

// Where a gradient lies in its bucket's block, in elements. Its own elements
// lie there in the order in which the plan counts them.
struct GradientPlace {
  std::optional<std::size_t>
      parameter{};  // the plan's number; none: no shard's
  std::size_t begin = 0;
  std::size_t elements = 0;
};

struct OwnerRanges {
  // Of the block, in elements.
  struct Range {
    std::size_t begin = 0;
    std::size_t elements = 0;
    friend bool operator==(const Range&, const Range&) = default;
  };
  // By round, then by rank: what that rank gets; without elements where it is
  // nothing.
  std::vector<std::vector<Range>> rounds{};
  // What no rank owns.
  std::vector<Range> of_nobody{};
};

// `gradients` are those of one bucket, in the order in which they lie there.
// Neighbouring elements of one owner are one range, also of several gradients.
OwnerRanges owner_ranges(const ShardPlan& plan,
                         std::span<const GradientPlace> gradients);

}  // namespace lockstep
