// One rank of `lockstep bench`.
//
// Threads: the main thread.
// Errors:  those of init_process_group() and Work::wait(); InvalidArgument,
//          before this rank joins the others, when it needs a GPU and has none;
//          InternalError for a wrong result; SystemError for a file that cannot
//          be written and a device that is out of memory.
#pragma once

#include "apps/bench/bench_options.h"
#include "src/base/settings.h"

namespace lockstep {

// Joins the other ranks, measures, and on rank 0 prints the report. On GPUs a
// rank uses the GPU of its local rank. With "all" backends, the report names
// the unavailable backends with the reason. "all" excludes "reference", which
// exists only for comparison.
void run_bench_rank(const BenchOptions& options, const Settings& settings);

}  // namespace lockstep
