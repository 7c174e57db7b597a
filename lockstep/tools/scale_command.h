// `lockstep scale`: runs one training job on several numbers of ranks, one
// after the other, and reports how it scales.
//
// Threads: the main thread.
// Errors:  as run_training(), before anything runs where it can be known then;
//          Error when a command that is put beside it does not say its images a
//          second.
#pragma once

#include <string>
#include <vector>

#include "lockstep/base/settings.h"
#include "lockstep/tools/scale_options.h"

namespace lockstep {

struct ScaleRequest {
  ScaleOptions options;          // complete
  std::vector<std::string> job;  // flags of `lockstep train`
  int cores = 1;                 // that the jobs may use
};

// Prints the report to standard output; what the jobs show goes to standard
// error. Returns the exit code for this process: that of the first job that
// fails, after which no other is run; those before it are reported.
int run_scale(const ScaleRequest& request, const EnvironmentLookup& lookup);

}  // namespace lockstep
