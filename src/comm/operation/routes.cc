#include "src/comm/operation/routes.h"

namespace lockstep {

BufferSpan Routes::block(std::span<const Buffer> list, int r) const {
  const auto index = static_cast<std::size_t>(r);
  if (list.empty()) return {};
  if (operation.division == Division::kPerRank) return {list.subspan(index, 1)};
  return {list, index, static_cast<std::size_t>(ranks)};
}

std::span<const Buffer> Routes::source() const {
  switch (operation.kind) {
    case OperationKind::kBarrier:
    case OperationKind::kReplay:
    case OperationKind::kReceive:
      return {};
    case OperationKind::kBroadcast:
      return rank == operation.root ? operation.outputs
                                    : std::span<const Buffer>{};
    case OperationKind::kAllReduce:
    case OperationKind::kReduce:
      return operation.outputs;
    case OperationKind::kScatter:
      return rank == operation.root ? operation.inputs
                                    : std::span<const Buffer>{};
    case OperationKind::kAllGather:
    case OperationKind::kGather:
    case OperationKind::kReduceScatter:
    case OperationKind::kAllToAll:
    case OperationKind::kSend:
    case OperationKind::kShardedUpdate:
      return operation.inputs;
  }
  return {};
}

BufferSpan Routes::outgoing(int to) const {
  switch (operation.kind) {
    case OperationKind::kBarrier:
    case OperationKind::kReplay:
    case OperationKind::kReceive:
      return {};
    case OperationKind::kBroadcast:
      return to == rank ? BufferSpan{} : BufferSpan{source()};
    case OperationKind::kAllReduce:
    case OperationKind::kAllGather:
    case OperationKind::kShardedUpdate:
      return {source()};
    case OperationKind::kReduce:
    case OperationKind::kGather:
      return to == operation.root ? BufferSpan{source()} : BufferSpan{};
    case OperationKind::kScatter:
    case OperationKind::kReduceScatter:
    case OperationKind::kAllToAll:
      return block(source(), to);
    case OperationKind::kSend:
      return to == operation.peer ? BufferSpan{source()} : BufferSpan{};
  }
  return {};
}

BufferSpan Routes::incoming(int from) const {
  switch (operation.kind) {
    case OperationKind::kBarrier:
    case OperationKind::kReplay:
    case OperationKind::kSend:
    case OperationKind::kAllReduce:
    case OperationKind::kReduce:
    case OperationKind::kReduceScatter:
    case OperationKind::kShardedUpdate:
      return {};
    case OperationKind::kBroadcast:
      return from == operation.root && from != rank
                 ? BufferSpan{operation.outputs}
                 : BufferSpan{};
    case OperationKind::kAllGather:
    case OperationKind::kAllToAll:
      return block(operation.outputs, from);
    case OperationKind::kGather:
      return rank == operation.root ? block(operation.outputs, from)
                                    : BufferSpan{};
    case OperationKind::kScatter:
      return from == operation.root ? BufferSpan{operation.outputs}
                                    : BufferSpan{};
    case OperationKind::kReceive:
      return from == operation.peer ? BufferSpan{operation.outputs}
                                    : BufferSpan{};
  }
  return {};
}

BufferSpan Routes::result() const {
  if (!reduces(operation.kind)) return {};
  if (operation.kind == OperationKind::kReduce && rank != operation.root)
    return {};
  return {operation.outputs};
}

}  // namespace lockstep
