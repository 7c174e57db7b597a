#include "src/comm/nccl/nccl_calls.h"

#include <algorithm>

#include "lockstep/base/error.h"
#include "src/comm/operation/routes.h"

namespace lockstep {
namespace {

// NCCL has no bool. Its bytes are 0 and 1.
std::int32_t type_of(DataType type) {
  return static_cast<std::int32_t>(type == DataType::kBool ? DataType::kUInt8
                                                           : type);
}

// The average over one rank is its sum, which NCCL leaves in place: for its own
// average it would start a kernel that multiplies by 1.
LockstepGpuSum sum_of(ReduceOp op, DataType type, int ranks) {
  const bool logical = type == DataType::kBool;
  switch (op) {
    case ReduceOp::kSum:
      return logical ? kGpuMax : kGpuSum;
    case ReduceOp::kProduct:
      return logical ? kGpuMin : kGpuProduct;
    case ReduceOp::kMin:
      return kGpuMin;
    case ReduceOp::kMax:
      return kGpuMax;
    case ReduceOp::kAverage:
      return ranks == 1 ? kGpuSum : kGpuAverage;
    case ReduceOp::kBand:
    case ReduceOp::kBor:
    case ReduceOp::kBxor:
      break;  // nccl_supports() says no
  }
  return kGpuSum;
}

bool is_bitwise(ReduceOp op) {
  return op == ReduceOp::kBand || op == ReduceOp::kBor || op == ReduceOp::kBxor;
}

class Issue {
 public:
  Issue(const Operation& operation, int rank, int size, GpuCommunicator& line)
      : operation_(operation),
        routes_{operation, rank, size},
        rank_(rank),
        size_(size),
        line_(line) {}

  void run() {
    const bool even = operation_.division == Division::kEven;
    switch (operation_.kind) {
      case OperationKind::kAllReduce:
        return in_place(kGpuAllReduce);
      case OperationKind::kReduce:
        return in_place(kGpuReduce);
      case OperationKind::kBroadcast:
        return in_place(kGpuBroadcast);
      case OperationKind::kAllGather:
        return even ? between_lists(kGpuAllGather) : exchange();
      case OperationKind::kReduceScatter:
        return even ? between_lists(kGpuReduceScatter) : reduce_to_each();
      case OperationKind::kGather:
      case OperationKind::kScatter:
      case OperationKind::kAllToAll:
        return exchange();
      case OperationKind::kSend:
        return move(kGpuSend, {operation_.inputs}, 1);
      case OperationKind::kReceive:
        return move(kGpuReceive, {operation_.outputs}, 0);
      case OperationKind::kBarrier:
      case OperationKind::kShardedUpdate:
        return;  // nccl_supports() says no
      case OperationKind::kReplay:
        return;  // its calls are in the graph
    }
  }

 private:
  // Elements of one type, and where they go.
  struct Piece {
    const void* from;
    void* to;
    std::int64_t count;
    DataType type;
  };

  void call(LockstepGpuKind kind, int peer, const Piece& piece) {
    if (piece.count == 0) return;
    line_.call({.kind = kind,
                .sum = sum_of(operation_.reduction, piece.type, size_),
                .type = type_of(piece.type),
                .peer = peer,
                .from = piece.from,
                .to = piece.to,
                .count = static_cast<std::size_t>(piece.count)});
  }

  void in_place(LockstepGpuKind kind) {
    for (const Buffer& buffer : operation_.outputs)
      call(kind, operation_.root,
           {buffer.data, buffer.data, buffer.count, buffer.type});
  }

  // The shorter list gives the number of elements.
  void between_lists(LockstepGpuKind kind) {
    for (std::size_t i = 0; i < operation_.inputs.size(); ++i) {
      const Buffer& from = operation_.inputs[i];
      const Buffer& to = operation_.outputs[i];
      call(kind, 0,
           {from.data, to.data, std::min(from.count, to.count), from.type});
    }
  }

  void reduce_to_each() {
    for (int r = 0; r < size_; ++r) {
      const Buffer& block = operation_.inputs[static_cast<std::size_t>(r)];
      void* const to =
          r == rank_ ? operation_.outputs.front().data : block.data;
      call(kGpuReduce, r, {block.data, to, block.count, block.type});
    }
  }

  void move(LockstepGpuKind kind, const BufferSpan& run, int peer) {
    if (run.buffers.empty()) return;
    const DataType type = run.buffers.front().type;
    for (BufferCursor cursor(run); cursor.left() > 0;
         cursor.advance(cursor.left()))
      call(kind, peer,
           {cursor.here(), cursor.here(),
            static_cast<std::int64_t>(cursor.left() / size_of(type)), type});
  }

  void copy_own_block() {
    const BufferSpan to_run = routes_.incoming(rank_);
    BufferCursor from(routes_.outgoing(rank_));
    for (BufferCursor to(to_run); to.left() > 0 && from.left() > 0;) {
      const std::size_t bytes = std::min(from.left(), to.left());
      if (from.here() != to.here()) line_.copy(to.here(), from.here(), bytes);
      from.advance(bytes);
      to.advance(bytes);
    }
  }

  void exchange() {
    copy_own_block();
    for (int r = 0; r < size_; ++r) {
      if (r == rank_) continue;
      move(kGpuSend, routes_.outgoing(r), r);
      move(kGpuReceive, routes_.incoming(r), r);
    }
  }

  const Operation& operation_;
  const Routes routes_;
  const int rank_;
  const int size_;
  GpuCommunicator& line_;
};

// Ends the group that it began, even if a call in between is refused.
void issue(Issue issue, GpuCommunicator& line) {
  line.begin();
  try {
    issue.run();
  } catch (...) {
    try {
      line.end();
    } catch (const Error&) {
      // The first error is the cause.
    }
    throw;
  }
  line.end();
}

}  // namespace

bool nccl_supports(const Operation& operation) {
  const auto on_gpu = [](const Buffer& buffer) {
    return buffer.device.kind == DeviceKind::kCuda;
  };
  if (!std::ranges::all_of(operation.inputs, on_gpu) ||
      !std::ranges::all_of(operation.outputs, on_gpu))
    return false;
  if (reduces(operation.kind) && is_bitwise(operation.reduction)) return false;
  if (is_point_to_point(operation.kind))
    return operation.tag == 0 && operation.peer != kAnySource;
  return operation.kind != OperationKind::kBarrier &&
         operation.kind != OperationKind::kShardedUpdate;
}

void issue_collective(const Operation& operation, int rank, int size,
                      GpuCommunicator& line) {
  issue({operation, rank, size, line}, line);
}

void issue_message(const Operation& operation, GpuCommunicator& line) {
  issue({operation, operation.kind == OperationKind::kSend ? 0 : 1, 2, line},
        line);
}

}  // namespace lockstep
