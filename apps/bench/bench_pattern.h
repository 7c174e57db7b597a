// The values that a benchmark writes into the ranks' buffers before each round,
// and the expected results.
//
// Every element depends on its rank, block, position and round, so verification
// detects a misplaced block and a result of an earlier round. The values are
// whole numbers, small enough that every type holds them and their sums
// exactly.
//
// Errors:  InternalError for a wrong result, which is a bug in the engine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "apps/bench/bench_engine.h"
#include "lockstep/base/buffer.h"
#include "src/comm/operation/operation.h"

namespace lockstep {

// The source of a block's elements.
struct BlockOrigin {
  int rank = 0;
  int block = 0;  // of that rank's input
};

// The blocks that rank `rank` of `size` holds after the collective, each with
// its source blocks: several when they are reduced.
std::vector<std::vector<BlockOrigin>> expected_blocks(
    BenchCollective collective, int rank, int size);

struct ElementKind {
  DataType type = DataType::kFloat32;
  ReduceOp op = ReduceOp::kSum;  // selects the values
};

// Writes the `count` elements of a block.
void write_block(std::byte* block, std::size_t count, const ElementKind& kind,
                 const BlockOrigin& origin, std::uint64_t round);

// Throws unless the `count` elements equal the combined `origins`. The
// comparison is exact, except where a float16 or bfloat16 sum or an average is
// rounded.
void check_block(const std::byte* block, std::size_t count,
                 const ElementKind& kind, std::span<const BlockOrigin> origins,
                 std::uint64_t round);

}  // namespace lockstep
