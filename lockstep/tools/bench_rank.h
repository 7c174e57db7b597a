// One rank of `lockstep bench`.
//
// Threads: the main thread.
// Errors:  as init_process_group() and Work::wait(); InvalidArgument, before
//          the others are joined, where this rank has no GPU and is to have
//          one; InternalError for a wrong result; SystemError for a file that
//          cannot be written and a device that has no memory left.
#pragma once

#include "lockstep/base/settings.h"
#include "lockstep/tools/bench_options.h"

namespace lockstep {

// Joins the other ranks, measures, and on rank 0 prints what was found. On GPUs
// a rank has the one of its number on its host. With "all" backends, those that
// this machine or these ranks cannot have are named with the reason;
// "reference", which only exists to be compared with, is not among them.
void run_bench_rank(const BenchOptions& options, const Settings& settings);

}  // namespace lockstep
