// `lockstep evaluate` and `lockstep predict`: launch lockstep-evaluate, which
// loads LibTorch, once per rank.
//
// Threads: the main thread.
// Errors:  InvalidArgument when lockstep-evaluate is missing; those of
//          run_job().
#pragma once

#include <string>
#include <vector>

#include "src/base/settings.h"
#include "src/tools/evaluate/evaluate_options.h"
#include "src/tools/job/launch_flags.h"

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
