// The ranks' combined elements, as the reference backend computes them.
#pragma once

#include <cstddef>
#include <vector>

#include "lockstep/base/buffer.h"
#include "src/comm/nccl/gpu_table.h"

namespace lockstep {

// `ranks[r]` are rank r's `count` elements.
std::vector<std::byte> reduce_elements(
    DataType type, LockstepGpuSum sum,
    const std::vector<const std::byte*>& ranks, std::size_t count);

}  // namespace lockstep
