// Turns results of CUDA and NCCL into a result and an outcome of gpu_table.h.
//
// Threads: every function may be called from any thread.
// Errors:  the functions return outcomes; they do not throw.
#pragma once

#include <cuda_runtime.h>
#include <nccl.h>

#include <exception>
#include <new>

#include "src/comm/nccl/gpu_table.h"

namespace lockstep {

// Sets the outcome's text.
LockstepGpuResult tell(LockstepGpuResult result, const char* text,
                       LockstepGpuOutcome* outcome);

// The result of CUDA's function `name`. Clears an error, so that another
// library's next call does not report it.
LockstepGpuResult result_of(cudaError_t error, const char* name,
                            LockstepGpuOutcome* outcome);

// The result of NCCL's function `name`.
LockstepGpuResult result_of(ncclResult_t result, const char* name,
                            LockstepGpuOutcome* outcome);

// Runs `action` and keeps its exceptions from crossing the border.
template <class Action>
LockstepGpuResult guarded(LockstepGpuOutcome* outcome, const Action& action) {
  try {
    return action();
  } catch (const std::bad_alloc&) {
    return tell(kGpuNoMemory, "the host has no memory left", outcome);
  } catch (const std::exception& error) {
    return tell(kGpuFailed, error.what(), outcome);
  } catch (...) {
    return tell(kGpuFailed, "an unknown error", outcome);
  }
}

}  // namespace lockstep
