// Defines each reduction, element by element, in the simplest code.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "src/comm/operation/operation.h"

namespace lockstep {

// Combines `contributions[r]`, the bytes of rank r's `count` elements of
// `type`, into `result`. The ranks are combined in a balanced tree: the first
// half (the largest power of two below their number) and the rest are each
// combined on their own, then with each other. float16 and bfloat16 are
// combined in float32 and rounded once; integers wrap around.
void reference_reduce(ReduceOp op, DataType type,
                      std::span<const std::vector<std::byte>> contributions,
                      std::span<std::byte> result);

}  // namespace lockstep
