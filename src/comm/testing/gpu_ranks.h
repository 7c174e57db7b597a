// Ranks as threads, each with a GPU of its own: a FakeGpu's.
//
// Threads: those of run_ranks().
#pragma once

#include "src/comm/nccl/gpu_table.h"
#include "src/comm/testing/run_ranks.h"

namespace lockstep {

// Like run_ranks("hybrid", …) with all ranks on one host, where `table` handles
// buffers on a GPU. Rank r has device r.
void run_gpu_ranks(const LockstepGpuTable& table, int ranks,
                   const RankBody& body);

}  // namespace lockstep
