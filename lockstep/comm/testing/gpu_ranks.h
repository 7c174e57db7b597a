// Ranks as threads, each with a GPU of its own: a FakeGpu's.
//
// Threads: as run_ranks().
#pragma once

#include "lockstep/comm/nccl/gpu_table.h"
#include "lockstep/comm/testing/run_ranks.h"

namespace lockstep {

// As run_ranks("hybrid", …), all on one host, where buffers on a GPU are NCCL's
// by `table`. Rank r has device r.
void run_gpu_ranks(const LockstepGpuTable& table, int ranks,
                   const RankBody& body);

}  // namespace lockstep
