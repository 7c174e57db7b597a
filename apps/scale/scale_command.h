// `lockstep scale`: runs one training job with several world sizes in sequence,
// and reports how it scales.
//
// Threads: the main thread.
// Errors:  those of run_training(), before the first run where possible; Error
//          when a compared command does not print its images per second.
#pragma once

#include <string>
#include <vector>

#include "apps/scale/scale_options.h"
#include "src/base/settings.h"

namespace lockstep {

struct ScaleRequest {
  ScaleOptions options;          // complete
  std::vector<std::string> job;  // flags of `lockstep train`
  int cores = 1;                 // cores that the jobs may use
};

// Prints the report to standard output; the jobs' output goes to standard
// error. Returns the exit code for this process: that of the first job that
// fails. No job runs after it; the report covers the jobs before it.
int run_scale(const ScaleRequest& request, const EnvironmentLookup& lookup);

}  // namespace lockstep
