// `lockstep train`: launches lockstep-train, which loads LibTorch, once per
// process. When TF_CONFIG assigns a worker to this process, the process becomes
// it.
//
// Threads: the main thread.
// Errors:  InvalidArgument when lockstep-train is missing; those of run_job().
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "apps/job/launch_flags.h"
#include "apps/train/train_options.h"
#include "src/base/settings.h"
#include "src/launch/job/job.h"

namespace lockstep {

struct TrainRequest {
  TrainOptions options;  // complete
  LaunchFlags launch;
  std::vector<std::string> arguments;  // as typed, passed to each rank
};

// When TF_CONFIG applies and names this process's worker, becomes that worker;
// the user starts the other workers elsewhere. Otherwise returns.
void become_named_worker(const TrainRequest& request,
                         const EnvironmentLookup& lookup);

// Launches the processes. Returns the exit code for this process.
int run_training(const TrainRequest& request, const EnvironmentLookup& lookup,
                 const JobView& view = {});

// The training program: the path in LOCKSTEP_TRAIN_PROGRAM; otherwise the
// lockstep-train beside this process's executable (a build) or in
// ../libexec/lockstep (an installation). Nothing when it is in neither.
std::optional<std::string> find_train_program(const EnvironmentLookup& lookup);

}  // namespace lockstep
