// One rank of `lockstep bench`.
//
// Threads: main.
// Errors:  as init_process_group() and Work::wait(); InternalError for a wrong
//          result; SystemError for a file that cannot be written.
#pragma once

#include "lockstep/tools/bench_options.h"

namespace lockstep {

// Joins the other ranks, measures, and on rank 0 prints what was found. With
// "all" backends, those that this machine or these ranks cannot have are named
// with the reason; "reference", which only exists to be compared with, is not
// among them.
void run_bench_rank(const BenchOptions& options);

}  // namespace lockstep
