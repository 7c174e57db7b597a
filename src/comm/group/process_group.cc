#include "lockstep/comm/process_group.h"

#include <utility>

#include "src/comm/diagnosis/recorder.h"
#include "src/comm/group/group_core.h"

namespace lockstep {

ProcessGroup::ProcessGroup(std::unique_ptr<GroupCore> core)
    : core_(std::move(core)),
      rank_(core_->identity().rank),
      size_(core_->identity().size) {}

ProcessGroup::~ProcessGroup() = default;

const std::string& ProcessGroup::name() const { return core_->identity().name; }

std::string ProcessGroup::backend() const { return core_->backend_name(); }

std::chrono::nanoseconds ProcessGroup::timeout() const {
  return core_->timeout();
}

std::chrono::nanoseconds ProcessGroup::time_waited() const {
  const auto& world = core_->world();
  return world ? world->recorder()->time_waited() : std::chrono::nanoseconds{};
}

std::shared_ptr<std::byte> ProcessGroup::allocate(std::size_t bytes) {
  return core_->member()->allocate(bytes);
}

void ProcessGroup::abort(std::string_view reason) noexcept {
  core_->abort(reason);
}

void ProcessGroup::leave() noexcept { core_->leave(); }

Work ProcessGroup::broadcast(Buffers buffers, int root,
                             const CallOptions& options) {
  return core_->run(
      {.kind = OperationKind::kBroadcast, .outputs = buffers, .root = root},
      options);
}

Work ProcessGroup::all_reduce(Buffers buffers, ReduceOp op,
                              const CallOptions& options) {
  return core_->run(
      {.kind = OperationKind::kAllReduce, .outputs = buffers, .reduction = op},
      options);
}

Work ProcessGroup::reduce(Buffers buffers, ReduceOp op, int root,
                          const CallOptions& options) {
  return core_->run({.kind = OperationKind::kReduce,
                     .outputs = buffers,
                     .reduction = op,
                     .root = root},
                    options);
}

Work ProcessGroup::all_gather(Buffers inputs, Buffers outputs,
                              const CallOptions& options) {
  return core_->run(
      {.kind = OperationKind::kAllGather, .inputs = inputs, .outputs = outputs},
      options);
}

Work ProcessGroup::all_gather_v(const Buffer& input, Buffers outputs,
                                const CallOptions& options) {
  return core_->run({.kind = OperationKind::kAllGather,
                     .division = Division::kPerRank,
                     .inputs = Buffers(input),
                     .outputs = outputs},
                    options);
}

Work ProcessGroup::gather(Buffers inputs, Buffers outputs, int root,
                          const CallOptions& options) {
  return core_->run({.kind = OperationKind::kGather,
                     .inputs = inputs,
                     .outputs = rank() == root ? outputs : Buffers(),
                     .root = root},
                    options);
}

Work ProcessGroup::scatter(Buffers inputs, Buffers outputs, int root,
                           const CallOptions& options) {
  return core_->run({.kind = OperationKind::kScatter,
                     .inputs = rank() == root ? inputs : Buffers(),
                     .outputs = outputs,
                     .root = root},
                    options);
}

Work ProcessGroup::reduce_scatter(Buffers inputs, Buffers outputs, ReduceOp op,
                                  const CallOptions& options) {
  return core_->run({.kind = OperationKind::kReduceScatter,
                     .inputs = inputs,
                     .outputs = outputs,
                     .reduction = op},
                    options);
}

Work ProcessGroup::reduce_scatter_v(Buffers inputs, const Buffer& output,
                                    ReduceOp op, const CallOptions& options) {
  return core_->run({.kind = OperationKind::kReduceScatter,
                     .division = Division::kPerRank,
                     .inputs = inputs,
                     .outputs = Buffers(output),
                     .reduction = op},
                    options);
}

Work ProcessGroup::all_to_all(Buffers inputs, Buffers outputs,
                              const CallOptions& options) {
  return core_->run(
      {.kind = OperationKind::kAllToAll, .inputs = inputs, .outputs = outputs},
      options);
}

Work ProcessGroup::all_to_all_v(Buffers inputs, Buffers outputs,
                                const CallOptions& options) {
  return core_->run({.kind = OperationKind::kAllToAll,
                     .division = Division::kPerRank,
                     .inputs = inputs,
                     .outputs = outputs},
                    options);
}

Work ProcessGroup::barrier(const CallOptions& options) {
  return core_->run({.kind = OperationKind::kBarrier}, options);
}

Work ProcessGroup::isend(const Buffer& buffer, int to, int tag,
                         const CallOptions& options) {
  return core_->run({.kind = OperationKind::kSend,
                     .inputs = Buffers(buffer),
                     .peer = to,
                     .tag = tag},
                    options);
}

Work ProcessGroup::irecv(const Buffer& buffer, int from, int tag,
                         const CallOptions& options) {
  return core_->run({.kind = OperationKind::kReceive,
                     .outputs = Buffers(buffer),
                     .peer = from,
                     .tag = tag},
                    options);
}

void ProcessGroup::send(const Buffer& buffer, int to, int tag,
                        const CallOptions& options) {
  isend(buffer, to, tag, options).wait();
}

int ProcessGroup::recv(const Buffer& buffer, int from, int tag,
                       const CallOptions& options) {
  const Work work = irecv(buffer, from, tag, options);
  work.wait();
  return from != kAnySource ? from : work.source_rank();
}

std::vector<Work> ProcessGroup::batch_isend_irecv(
    std::span<const Message> messages, const CallOptions& options) {
  return core_->run_batch(messages, options);
}

}  // namespace lockstep
