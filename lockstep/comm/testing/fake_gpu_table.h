// The C functions over whichever FakeGpu there is.
//
// Threads: any.
#pragma once

#include "lockstep/comm/nccl/gpu_table.h"
#include "lockstep/comm/testing/fake_gpu_state.h"

namespace lockstep {

// Null: there is none. At most one at a time.
void set_current_fake_gpu(FakeGpuState* state);
const LockstepGpuTable& fake_gpu_table();

}  // namespace lockstep
