// `lockstep evaluate` and `lockstep predict`: launch lockstep-evaluate, which
// loads LibTorch, once per rank.
//
// Threads: the main thread.
// Errors:  InvalidArgument when lockstep-evaluate is missing; those of
//          run_job().
#pragma once

#include <string>
#include <vector>

#include "apps/evaluate/evaluate_options.h"
#include "apps/job/launch_flags.h"
#include "src/base/settings.h"

namespace lockstep {

struct EvaluateRequest {
  EvaluateOptions options;  // complete
  LaunchFlags launch;
  // As typed from the verb on, passed to each rank.
  std::vector<std::string> arguments;
};

// Returns the exit code for this process.
int run_evaluation(const EvaluateRequest& request,
                   const EnvironmentLookup& lookup);

}  // namespace lockstep
