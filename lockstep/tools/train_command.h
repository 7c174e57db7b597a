// `lockstep train`: launches lockstep-train, which has LibTorch in it, once a
// rank.
//
// Threads: main.
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

// Returns the exit code for this process.
int run_training(const TrainRequest& request, const EnvironmentLookup& lookup,
                 const JobView& view = {});

// The program that trains: what LOCKSTEP_TRAIN_PROGRAM names; else the
// lockstep-train beside this process's executable, where it is built, or in
// ../libexec/lockstep, where it is installed. Nothing when it is in neither.
std::optional<std::string> find_train_program(const EnvironmentLookup& lookup);

}  // namespace lockstep
