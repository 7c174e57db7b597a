// `lockstep bench`: launches lockstep-bench once per rank, or becomes it when
// `lockstep run`, torchrun, mpirun or srun has already started the ranks.
//
// Threads: the main thread.
// Errors:  InvalidArgument when lockstep-bench is missing; those of run_job().
#pragma once

#include <string>
#include <vector>

#include "apps/bench/bench_options.h"
#include "apps/job/launch_flags.h"
#include "src/base/settings.h"

namespace lockstep {

struct BenchRequest {
  BenchOptions options;
  LaunchFlags launch;
  std::vector<std::string> arguments;  // as typed, passed to each rank
};

// Returns the exit code for this process. Does not return when the process
// becomes a rank.
int run_bench(const BenchRequest& request, const EnvironmentLookup& lookup);

}  // namespace lockstep
