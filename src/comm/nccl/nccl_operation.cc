#include "src/comm/nccl/nccl_operation.h"

#include "src/comm/operation/current_stream.h"

namespace lockstep {
namespace {

void* current_stream_of(const Gpu& gpu) {
  return current_stream({DeviceKind::kCuda, gpu.index()});
}

}  // namespace

NcclOperation::NcclOperation(const Operation& given, const Gpu& its_gpu)
    : inputs(given.inputs.begin(), given.inputs.end()),
      outputs(given.outputs.begin(), given.outputs.end()),
      label(given.label),
      operation(given),
      names_stream(given.stream != nullptr),
      gpu(its_gpu),
      graph(given.graph != nullptr ? given.graph->shared_from_this() : nullptr),
      deadline(given.timeout),
      begins(gpu),
      ends(gpu) {
  operation.inputs = inputs;
  operation.outputs = outputs;
  operation.label = label;
  if (!names_stream) operation.stream = current_stream_of(gpu);
  capture = gpu.capture_of(caller());
}

void NcclOperation::hold_up_caller() const {
  ends.hold_up(caller());
  if (names_stream) return;
  auto* const here = static_cast<LockstepGpuStream*>(current_stream_of(gpu));
  if (here != caller()) ends.hold_up(here);
}

}  // namespace lockstep
