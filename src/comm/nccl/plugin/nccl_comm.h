// The NCCL part of gpu_table.h: communicators and their calls. The table says
// what each function does.
//
// All communicators are non-blocking: an NCCL thread communicates with other
// ranks, and comm_state() reports its progress.
#pragma once

#include "src/comm/nccl/plugin/gpu_outcome.h"

namespace lockstep::nccl_comm {

using Result = LockstepGpuResult;
using Outcome = LockstepGpuOutcome;

Result unique_id(char* id, Outcome* outcome);
Result create(const LockstepGpuCommConfig* config, LockstepGpuComm** comm,
              Outcome* outcome);
Result state(LockstepGpuComm* comm, Outcome* outcome);
void abort(LockstepGpuComm* comm);
Result finalize(LockstepGpuComm* comm, Outcome* outcome);
void destroy(LockstepGpuComm* comm);

Result group_begin(Outcome* outcome);
Result group_end(Outcome* outcome);
Result call(LockstepGpuComm* comm, const LockstepGpuCall* call,
            LockstepGpuStream* stream, Outcome* outcome);

Result register_memory(LockstepGpuComm* comm, void* memory, std::size_t bytes,
                       void** handle, Outcome* outcome);
void unregister_memory(LockstepGpuComm* comm, void* handle);

}  // namespace lockstep::nccl_comm
