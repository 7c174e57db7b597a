// The CUDA part of gpu_table.h: devices, streams, events and memory. The table
// says what each function does.
#pragma once

#include "src/comm/nccl/plugin/gpu_outcome.h"

namespace lockstep::cuda_device {

using Result = LockstepGpuResult;
using Outcome = LockstepGpuOutcome;

Result count(std::int32_t* devices, Outcome* outcome);
Result name(std::int32_t device, char* text, std::size_t bytes,
            Outcome* outcome);
Result use(std::int32_t device, std::int32_t* previous, Outcome* outcome);

Result stream_create(LockstepGpuStream** stream, Outcome* outcome);
void stream_destroy(LockstepGpuStream* stream);
Result stream_wait(LockstepGpuStream* stream, LockstepGpuEvent* event,
                   Outcome* outcome);
Result stream_capture(LockstepGpuStream* stream, std::uint64_t* capture,
                      Outcome* outcome);
Result event_create(LockstepGpuEvent** event, Outcome* outcome);
void event_destroy(LockstepGpuEvent* event);
Result event_record(LockstepGpuEvent* event, LockstepGpuStream* stream,
                    Outcome* outcome);
Result event_query(LockstepGpuEvent* event, Outcome* outcome);

Result allocate(void** memory, std::size_t bytes, Outcome* outcome);
void release(void* memory);
Result copy(void* to, const void* from, std::size_t bytes,
            LockstepGpuStream* stream, Outcome* outcome);

}  // namespace lockstep::cuda_device
