// `lockstep train`: launches lockstep-train, which has LibTorch in it, once for
// each process; where TF_CONFIG says which worker this process is, becomes it.
//
// Threads: the main thread.
// Errors:  InvalidArgument when lockstep-train is not there; as run_job().
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/settings.h"
#include "lockstep/tools/job.h"
#include "lockstep/tools/launch_flags.h"
#include "lockstep/tools/train_options.h"

namespace lockstep {

struct TrainRequest {
  TrainOptions options;  // complete
  LaunchFlags launch;
  std::vector<std::string> arguments;  // as typed, handed on to each rank
};

// Where TF_CONFIG counts and says which worker this process is, becomes that
// worker: the others are started by others, here or elsewhere. Else returns.
void become_named_worker(const TrainRequest& request,
                         const EnvironmentLookup& lookup);

// Launches the processes. Returns the exit code for this one.
int run_training(const TrainRequest& request, const EnvironmentLookup& lookup,
                 const JobView& view = {});

// The program that trains: what LOCKSTEP_TRAIN_PROGRAM names; else the
// lockstep-train beside this process's executable, where it is built, or in
// ../libexec/lockstep, where it is installed. Nothing when it is in neither.
std::optional<std::string> find_train_program(const EnvironmentLookup& lookup);

}  // namespace lockstep
