// What a benchmark writes into the ranks' buffers before each round, and what a
// collective must make of it.
//
// Every element depends on its rank, block, place and round: neither a block in
// the wrong place nor the result of an earlier round passes for the right one.
// The values are whole numbers, so small that every type holds them and their
// sums exactly.
//
// Errors:  InternalError for a wrong result: an engine's bug.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "lockstep/base/data_type.h"
#include "lockstep/comm/operation.h"
#include "lockstep/tools/bench_engine.h"

namespace lockstep {

// Where a block's elements come from.
struct BlockOrigin {
  int rank = 0;
  int block = 0;  // of that rank's input
};

// The blocks that rank `rank` of `size` holds after the collective, each with
// the blocks it is made of: more than one where they are reduced.
std::vector<std::vector<BlockOrigin>> expected_blocks(Collective collective,
                                                      int rank, int size);

struct ElementKind {
  DataType type = DataType::kFloat32;
  ReduceOp op = ReduceOp::kSum;  // decides which values are written
};

// Writes the `count` elements of a block.
void write_block(std::byte* block, std::size_t count, const ElementKind& kind,
                 const BlockOrigin& origin, std::uint64_t round);

// Throws unless the `count` elements are those of `origins`, combined. Exact,
// but where a sum of float16 or bfloat16 or an average must be rounded.
void check_block(const std::byte* block, std::size_t count,
                 const ElementKind& kind, std::span<const BlockOrigin> origins,
                 std::uint64_t round);

}  // namespace lockstep
