// Runs the job of a command: serves the store for its rendezvous, launches its
// ranks, and owns standard output and error until it ends.
//
// Threads: the main thread, before any other thread starts.
// Errors:  those of Launcher::run(); NetworkError when no port is free.
#pragma once

#include <unistd.h>

#include <functional>
#include <string>
#include <vector>

#include "src/base/progress_record.h"
#include "src/base/settings.h"
#include "src/launch/launcher/launcher.h"
#include "src/launch/nodes/node.h"
#include "src/tools/job/companion.h"
#include "src/tools/job/launch_flags.h"

namespace lockstep {

// The job of a command with a companion program.
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

// The outputs of a job.
struct JobView {
  // Descriptors for the ranks' output and for the progress; borrowed.
  int out = STDOUT_FILENO;
  int err = STDERR_FILENO;
  // If set, also receives rank 0's progress records.
  std::function<void(const ProgressRecord&)> on_progress{};
  // If set, receives the result of the job.
  std::function<void(const JobResult&)> on_end{};
};

// Fills in the store, the token and, when it is 0, the master port, then runs
// the job, and starts its workers again after a failure, up to
// `options.job.max_restarts` times. Returns the exit code for this process. It
// has then printed any failure of the job itself.
int run_job(LaunchOptions options, const EnvironmentLookup& lookup,
            const JobView& view = {});

// The same for a job on several hosts, where each launcher makes this call. The
// exit code is that of the worker that failed first, on whichever host.
int run_job_on_hosts(LaunchOptions options, NodeOptions nodes,
                     const EnvironmentLookup& lookup);

}  // namespace lockstep
