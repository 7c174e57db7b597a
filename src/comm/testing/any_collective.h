// A collective whose kind a test chooses at run time: the lengths of its lists,
// and the call.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "src/comm/operation/operation.h"

namespace lockstep {

// The element counts of a list, buffer by buffer.
using Counts = std::vector<std::int64_t>;

// Whether the inputs, or the outputs, have a part for each rank.
bool has_blocks_in(OperationKind kind);
bool has_blocks_out(OperationKind kind);

// Whether there are only outputs, which hold the rank's input before.
bool works_in_place(OperationKind kind);

struct AnyCollective {
  OperationKind kind = OperationKind::kBarrier;
  Division division = Division::kEven;
  ReduceOp reduction = ReduceOp::kSum;  // of the kinds that reduce
  int root = 0;                         // of the kinds that have a root

  Work start(ProcessGroup& group, Buffers inputs, Buffers outputs,
             const CallOptions& options = {}) const;
};

// The sizes of the lists of a collective of `ranks` ranks.
struct ListSizes {
  OperationKind kind = OperationKind::kBarrier;
  int ranks = 1;
  // Even: the counts of every rank's own elements, without other ranks' blocks.
  Counts own{};
  // Uneven: the elements that rank `from` has for rank `to`; if a list has only
  // one part, the other argument is 0. Empty for even ones.
  std::function<std::int64_t(int from, int to)> uneven{};

  // The counts that rank `rank` brings, and that it gets.
  Counts brought(int rank) const;
  Counts gained(int rank) const;
};

}  // namespace lockstep
