#include "src/comm/testing/any_collective.h"

namespace lockstep {
namespace {

Counts times(Counts counts, int factor) {
  for (std::int64_t& count : counts) count *= factor;
  return counts;
}

}  // namespace

bool has_blocks_in(OperationKind kind) {
  return kind == OperationKind::kScatter ||
         kind == OperationKind::kReduceScatter ||
         kind == OperationKind::kAllToAll;
}

bool has_blocks_out(OperationKind kind) {
  return kind == OperationKind::kAllGather || kind == OperationKind::kGather ||
         kind == OperationKind::kAllToAll;
}

bool works_in_place(OperationKind kind) {
  return kind == OperationKind::kBroadcast ||
         kind == OperationKind::kAllReduce || kind == OperationKind::kReduce;
}

Work AnyCollective::start(ProcessGroup& group, Buffers inputs, Buffers outputs,
                          const CallOptions& options) const {
  const bool even = division == Division::kEven;
  switch (kind) {
    case OperationKind::kBroadcast:
      return group.broadcast(outputs, root, options);
    case OperationKind::kAllReduce:
      return group.all_reduce(outputs, reduction, options);
    case OperationKind::kReduce:
      return group.reduce(outputs, reduction, root, options);
    case OperationKind::kAllGather:
      return even ? group.all_gather(inputs, outputs, options)
                  : group.all_gather_v(inputs.front(), outputs, options);
    case OperationKind::kGather:
      return group.gather(inputs, outputs, root, options);
    case OperationKind::kScatter:
      return group.scatter(inputs, outputs, root, options);
    case OperationKind::kReduceScatter:
      return even ? group.reduce_scatter(inputs, outputs, reduction, options)
                  : group.reduce_scatter_v(inputs, outputs.front(), reduction,
                                           options);
    case OperationKind::kAllToAll:
      return even ? group.all_to_all(inputs, outputs, options)
                  : group.all_to_all_v(inputs, outputs, options);
    case OperationKind::kBarrier:
    case OperationKind::kSend:
    case OperationKind::kReceive:
    case OperationKind::kShardedUpdate:
    case OperationKind::kReplay:
      break;
  }
  return group.barrier(options);
}

Counts ListSizes::brought(int rank) const {
  if (!uneven) return times(own, has_blocks_in(kind) ? ranks : 1);
  if (!has_blocks_in(kind)) return {uneven(rank, 0)};
  Counts counts;
  for (int to = 0; to < ranks; ++to) counts.push_back(uneven(rank, to));
  return counts;
}

Counts ListSizes::gained(int rank) const {
  if (!uneven) return times(own, has_blocks_out(kind) ? ranks : 1);
  if (!has_blocks_out(kind)) return {uneven(0, rank)};
  Counts counts;
  for (int from = 0; from < ranks; ++from) counts.push_back(uneven(from, rank));
  return counts;
}

}  // namespace lockstep
