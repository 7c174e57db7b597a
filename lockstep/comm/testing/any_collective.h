// A collective whose kind a test chooses as it runs: how long its lists are,
// and the call.
//
// Threads: pure functions, and start() as the group's own methods.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "lockstep/comm/process_group.h"

namespace lockstep {

// Of a list, buffer by buffer.
using Counts = std::vector<std::int64_t>;

// Whether the inputs, or the outputs, have a part for each rank.
bool has_blocks_in(OperationKind kind);
bool has_blocks_out(OperationKind kind);

// Whether there are only outputs, which hold what a rank brings before.
bool works_in_place(OperationKind kind);

struct AnyCollective {
  OperationKind kind = OperationKind::kBarrier;
  Division division = Division::kEven;
  ReduceOp reduction = ReduceOp::kSum;  // of the kinds that reduce
  int root = 0;                         // of the kinds that have one

  Work start(ProcessGroup& group, Buffers inputs, Buffers outputs,
             const CallOptions& options = {}) const;
};

// What the lists of a collective of `ranks` ranks are made of.
struct ListSizes {
  OperationKind kind = OperationKind::kBarrier;
  int ranks = 1;
  // Even: what every rank has of its own, however many blocks of others there
  // are.
  Counts own{};
  // Uneven: what rank `from` has for rank `to`; asked with 0 for one of them
  // where a list has only one part. Empty for even ones.
  std::function<std::int64_t(int from, int to)> uneven{};

  // What rank `rank` brings, and what it gets.
  Counts brought(int rank) const;
  Counts gained(int rank) const;
};

}  // namespace lockstep
