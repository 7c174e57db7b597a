// Assigns the optimizer's state of each element to a rank: parameter sizes →
// pieces.
//
// An optimizer's state is as large as the model or twice as large, and every
// rank of data-parallel training holds a copy. With one shard per rank each
// holds 1/n (Rajbhandari et al., "ZeRO", SC 2020, stage 1). PyTorch assigns
// whole parameters; this plan cuts them, so shards are equal even when one
// parameter is most of the model. See docs/design/planning.md.
//
// The plan is a pure function of its arguments: ranks that pass the same sizes
// get the same plan.
//
// Errors:  InvalidArgument for a number of ranks below 1.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "src/planning/bucket_plan.h"

namespace lockstep {

struct ShardPlan {
  // Consecutive elements of one parameter; at least one.
  struct Piece {
    std::size_t parameter = 0;
    std::size_t begin = 0;
    std::size_t elements = 0;
  };

  // A piece, as seen from its parameter.
  struct Owner {
    std::size_t rank = 0;
    std::size_t position = 0;  // among the rank's pieces
  };

  // By rank: its pieces in order of parameters, at most one per parameter. A
  // rank may have no pieces when there are fewer units than ranks.
  std::vector<std::vector<Piece>> ranks;
  // By parameter: the owners of its pieces, in order of elements. The pieces
  // cover the whole parameter; a parameter without elements has no pieces.
  std::vector<std::vector<Owner>> parameters;

  const Piece& piece(const Owner& owner) const {
    return ranks[owner.rank][owner.position];
  }
};

// Gives each rank 1/n of the elements of each data type and device, rounded to
// units of 64 bytes. A parameter is cut only at multiples of 64 bytes, so no
// two ranks write to one cache line.
ShardPlan plan_shards(std::span<const ParameterSize> parameters,
                      std::size_t ranks);

}  // namespace lockstep
