// Runs a job, the one way to do so: serves the store for its rendezvous,
// launches its ranks, starts them again after a failure, and owns standard
// output and error until the job ends.
//
// Threads: the main thread, before any other thread starts.
// Errors:  those of Launcher::run(); NetworkError when no port is free.
#pragma once

#include <unistd.h>

#include <functional>

#include "src/base/environment.h"
#include "src/base/progress_record.h"
#include "src/launch/launcher/launcher.h"
#include "src/launch/nodes/node.h"

namespace lockstep {

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
// exit code is that of the worker that is blamed, on whichever host.
int run_job_on_hosts(LaunchOptions options, NodeOptions nodes,
                     const EnvironmentLookup& lookup);

}  // namespace lockstep
