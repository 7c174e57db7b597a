// The job of a command whose ranks run a companion program.
//
// Threads: the main thread, before any other thread starts.
// Errors:  see each function.
#pragma once

#include <string>
#include <vector>

#include "apps/job/companion.h"
#include "apps/job/launch_flags.h"
#include "src/base/environment.h"
#include "src/launch/launcher/launcher.h"

namespace lockstep {

struct CompanionJob {
  Companion companion;
  std::vector<std::string> arguments;  // for each rank
  int ranks = 1;
  LaunchFlags launch;
};

// InvalidArgument when the companion is missing.
LaunchOptions launch_options(const CompanionJob& job,
                             const EnvironmentLookup& lookup);

// When a launcher started this process as a rank (torchrun, `lockstep run`,
// mpirun, srun, or a user who set RANK and WORLD_SIZE), this process becomes
// the companion and takes part as that rank; rank 0 reports it. Otherwise
// returns. InvalidArgument where check_rank_environment() throws it.
void join_ranks_of_launcher(const LaunchOptions& options,
                            const EnvironmentLookup& lookup);

}  // namespace lockstep
