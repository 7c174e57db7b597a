// The C functions over the current FakeGpu.
//
// Threads: any thread.
#pragma once

#include "src/comm/nccl/gpu_table.h"
#include "src/comm/testing/fake_gpu/fake_gpu_state.h"

namespace lockstep {

// Sets the current FakeGpu; null removes it. At most one at a time.
void set_current_fake_gpu(FakeGpuState* state);
const LockstepGpuTable& fake_gpu_table();

}  // namespace lockstep
