// Runs the job of a command: serves the store that its ranks meet at, launches
// it, and owns standard output and error until it is over.
//
// Threads: call it from the main thread, before any other exists.
// Errors:  as Launcher::run(); NetworkError when no port can be had.
#pragma once

#include <unistd.h>

#include <functional>
#include <string>
#include <vector>

#include "lockstep/base/progress_record.h"
#include "lockstep/base/settings.h"
#include "lockstep/launch/launcher.h"
#include "lockstep/tools/companion.h"
#include "lockstep/tools/launch_flags.h"

namespace lockstep {

// What a command with a companion program launches.
struct CompanionJob {
  Companion companion;
  std::vector<std::string> arguments;  // of each rank
  int ranks = 1;
  LaunchFlags launch;
};

// InvalidArgument when the companion is not there.
LaunchOptions launch_options(const CompanionJob& job,
                             const EnvironmentLookup& lookup);

// Where a launcher started this process as a rank (torchrun, `lockstep run`,
// mpirun, srun, or a user who set RANK and WORLD_SIZE), this process becomes
// the companion and takes part as that rank; rank 0 says so. Otherwise returns.
void join_ranks_of_launcher(const LaunchOptions& options,
                            const EnvironmentLookup& lookup);

// Where a job is seen.
struct JobView {
  // Descriptors for what its ranks write, and for its progress; lent.
  int out = STDOUT_FILENO;
  int err = STDERR_FILENO;
  // Is told of rank 0's progress records too, if there is one.
  std::function<void(const ProgressRecord&)> on_progress{};
};

// Fills in the store, the token and, where it is 0, the master port, then runs
// it. Returns the exit code for this process. What went wrong in the job itself
// has been printed then.
int run_job(LaunchOptions options, const EnvironmentLookup& lookup,
            const JobView& view = {});

}  // namespace lockstep
