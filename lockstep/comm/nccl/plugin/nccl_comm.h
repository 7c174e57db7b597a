// The part of gpu_table.h that is NCCL's: communicators and what they carry
// out. The table says what each function does.
//
// All communicators are non-blocking: what has to reach other ranks goes on in
// a thread of NCCL's, and comm_state() tells how far it is.
#pragma once

#include "lockstep/comm/nccl/plugin/gpu_outcome.h"

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
