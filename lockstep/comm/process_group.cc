#include "lockstep/comm/process_group.h"

#include <fmt/format.h>

#include <cstdlib>
#include <cstring>
#include <new>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

void check_buffer(const Buffer& buffer, const Operation& operation,
                  const Buffer& first) {
  const auto refuse = [&](const std::string& why) {
    throw InvalidArgument(fmt::format("{}: {}", name_of(operation.kind), why));
  };
  if (buffer.count < 0)
    refuse(fmt::format("a buffer has {} elements; a count cannot be negative",
                       buffer.count));
  if (buffer.data == nullptr && buffer.count > 0)
    refuse(fmt::format("a buffer of {} elements has a null address",
                       buffer.count));
  if (buffer.type != first.type)
    refuse(fmt::format(
        "the buffers of one operation must have one type, but there are {} "
        "and {}; use one operation a type",
        name_of(first.type), name_of(buffer.type)));
}

void check_all_gather(const Operation& operation, int size) {
  if (operation.inputs.size() != operation.outputs.size())
    throw InvalidArgument(fmt::format(
        "all_gather: {} inputs but {} outputs; each input needs its output",
        operation.inputs.size(), operation.outputs.size()));
  for (std::size_t i = 0; i < operation.inputs.size(); ++i)
    if (operation.outputs[i].count != operation.inputs[i].count * size)
      throw InvalidArgument(fmt::format(
          "all_gather: output {} has {} elements; {} ranks with {} elements "
          "each need {}",
          i, operation.outputs[i].count, size, operation.inputs[i].count,
          operation.inputs[i].count * size));
}

}  // namespace

std::shared_ptr<std::byte> Backend::allocate(std::size_t bytes) {
  constexpr std::size_t kAlignment = 64;
  const std::size_t rounded = (bytes / kAlignment + 1) * kAlignment;
  void* memory = std::aligned_alloc(kAlignment, rounded);
  if (memory == nullptr) throw std::bad_alloc();
  std::memset(memory, 0, rounded);
  return {static_cast<std::byte*>(memory), &std::free};
}

ProcessGroup::ProcessGroup(std::shared_ptr<Backend> backend,
                           GroupIdentity identity,
                           std::chrono::nanoseconds timeout)
    : backend_(std::move(backend)),
      identity_(std::move(identity)),
      timeout_(timeout) {}

void ProcessGroup::validate(const Operation& operation) const {
  if (operation.root < 0 || operation.root >= size())
    throw InvalidArgument(fmt::format(
        "{}: the root is rank {}, but group \"{}\" has ranks 0 to "
        "{}",
        name_of(operation.kind), operation.root, name(), size() - 1));
  const auto& first_list =
      operation.inputs.empty() ? operation.outputs : operation.inputs;
  if (first_list.empty()) return;
  const Buffer& first = first_list.front();
  for (const Buffer& buffer : operation.inputs)
    check_buffer(buffer, operation, first);
  for (const Buffer& buffer : operation.outputs)
    check_buffer(buffer, operation, first);
  if (operation.kind == OperationKind::kAllGather)
    check_all_gather(operation, size());
  if (operation.kind == OperationKind::kAllReduce &&
      !is_defined(operation.reduction, first.type))
    throw InvalidArgument(fmt::format(
        "all_reduce: {} is not defined on {}{}", name_of(operation.reduction),
        name_of(first.type),
        operation.reduction == ReduceOp::kAverage
            ? "; use sum and divide, or convert to a floating-point type"
            : ""));
}

Work ProcessGroup::run(Operation operation, const CallOptions& options) {
  validate(operation);
  operation.timeout = options.timeout.value_or(timeout_);
  operation.place = options.place;
  if (!backend_->supports(operation))
    throw InvalidArgument(
        fmt::format("the backend \"{}\" cannot do {} on these buffers",
                    backend_->name(), describe(operation)));
  std::lock_guard lock(start_order_);
  operation.sequence = ++sequence_;
  return backend_->start(operation);
}

Work ProcessGroup::broadcast(std::span<const Buffer> buffers, int root,
                             CallOptions options) {
  return run({.kind = OperationKind::kBroadcast,
              .inputs = {},
              .outputs = buffers,
              .root = root},
             options);
}

Work ProcessGroup::broadcast(const Buffer& buffer, int root,
                             CallOptions options) {
  return broadcast(std::span(&buffer, 1), root, options);
}

Work ProcessGroup::all_reduce(std::span<const Buffer> buffers, ReduceOp op,
                              CallOptions options) {
  return run({.kind = OperationKind::kAllReduce,
              .inputs = {},
              .outputs = buffers,
              .reduction = op},
             options);
}

Work ProcessGroup::all_reduce(const Buffer& buffer, ReduceOp op,
                              CallOptions options) {
  return all_reduce(std::span(&buffer, 1), op, options);
}

Work ProcessGroup::all_gather(std::span<const Buffer> inputs,
                              std::span<const Buffer> outputs,
                              CallOptions options) {
  return run(
      {.kind = OperationKind::kAllGather, .inputs = inputs, .outputs = outputs},
      options);
}

Work ProcessGroup::all_gather(const Buffer& input, const Buffer& output,
                              CallOptions options) {
  return all_gather(std::span(&input, 1), std::span(&output, 1), options);
}

Work ProcessGroup::barrier(CallOptions options) {
  return run({.kind = OperationKind::kBarrier, .inputs = {}, .outputs = {}},
             options);
}

}  // namespace lockstep
