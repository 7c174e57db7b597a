// Which rank keeps the optimizer's state of which elements: parameter sizes →
// pieces.
//
// An optimizer's state is as large as the model, or twice that, and every rank
// of data-parallel training holds the same. Cut into one shard a rank, it costs
// each 1/n (Rajbhandari et al., "ZeRO", SC 2020, stage 1). PyTorch deals out
// whole parameters; here they are cut, so that shards are equal even when one
// parameter is most of the model. See docs/design/ddp.md.
//
// The plan is a pure function of its arguments: ranks that pass the same sizes
// get the same plan.
//
// Threads: values and pure functions.
// Errors:  InvalidArgument for no ranks.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "lockstep/ddp/bucket_plan.h"

namespace lockstep {

struct ShardPlan {
  // Consecutive elements of one parameter; never none.
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

  // By rank: its pieces in order of parameters, at most one of each. A rank has
  // none when there are fewer cuts than ranks.
  std::vector<std::vector<Piece>> ranks;
  // By parameter: who has its pieces, in order of elements. Together they are
  // the whole parameter; one without elements has none.
  std::vector<std::vector<Owner>> parameters;

  const Piece& piece(const Owner& owner) const {
    return ranks[owner.rank][owner.position];
  }
};

// Gives each rank 1/n of the elements of each data type and device, up to what
// fits into 64 bytes: a parameter is cut only at multiples of those, so that no
// two ranks write to one cache line.
ShardPlan plan_shards(std::span<const ParameterSize> parameters,
                      std::size_t ranks);

}  // namespace lockstep
