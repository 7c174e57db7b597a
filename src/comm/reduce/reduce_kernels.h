// The arithmetic of all-reduce on raw memory, as fast as this CPU can.
//
// The same source is compiled for several instruction sets, and the best is
// chosen at run time. All of them give the same bits: ranks are combined in the
// balanced tree that ProcessGroup::all_reduce promises, element by element.
#pragma once

#include <cstddef>
#include <span>

#include "src/base/instruction_set.h"
#include "src/comm/operation/operation.h"

namespace lockstep {

// Combines `count` elements at sources[0] … sources[n - 1], one source per
// rank, and writes the result to each of `targets`, which may be among the
// sources. Addresses need only the alignment of an element.
using ReduceKernel = void (*)(std::span<const std::byte* const> sources,
                              std::span<std::byte* const> targets,
                              std::size_t count);

// The kernel for `op` on `type`, which is_defined() allows.
ReduceKernel reduce_kernel(ReduceOp op, DataType type,
                           InstructionSet set = best_instruction_set());

}  // namespace lockstep
