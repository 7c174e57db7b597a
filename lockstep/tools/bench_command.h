// `lockstep bench`: launches lockstep-bench once a rank, or becomes it where
// `lockstep run`, torchrun, mpirun or srun has started the ranks already.
//
// Threads: the main thread.
// Errors:  InvalidArgument when lockstep-bench is not there; as run_job().
#pragma once

#include <string>
#include <vector>

#include "lockstep/base/settings.h"
#include "lockstep/tools/bench_options.h"
#include "lockstep/tools/launch_flags.h"

namespace lockstep {

struct BenchRequest {
  BenchOptions options;
  LaunchFlags launch;
  std::vector<std::string> arguments;  // as typed, handed on to each rank
};

// Returns the exit code for this process; not at all where it becomes a rank.
int run_bench(const BenchRequest& request, const EnvironmentLookup& lookup);

}  // namespace lockstep
