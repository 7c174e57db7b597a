#include "apps/evaluate/evaluate_command.h"

#include <utility>

#include "apps/job/companion_job.h"
#include "apps/job/input_files.h"
#include "src/launch/job/job.h"

namespace lockstep {
namespace {

constexpr Companion kEvaluate{
    .name = "lockstep-evaluate",
    .variable = "LOCKSTEP_EVALUATE_PROGRAM",
    .remedy = "this build has no LibTorch; build with it (./dev build)"};

// What every rank would meet. Another program than ours checks itself.
void check_inputs(const EvaluateOptions& options,
                  const EnvironmentLookup& lookup) {
  if (!lookup(kEvaluate.variable).value_or("").empty()) return;
  check_may_be_model(options.file);
  if (options.images.empty())
    check_split(options.dataset, options.data_dir,
                options.split == "train" ? Split::kTrain : Split::kTest);
}

}  // namespace

int run_evaluation(const EvaluateRequest& request,
                   const EnvironmentLookup& lookup) {
  LaunchOptions launch = launch_options({.companion = kEvaluate,
                                         .arguments = request.arguments,
                                         .ranks = request.options.ranks.value(),
                                         .launch = request.launch},
                                        lookup);
  apply(request.options.devices, lookup, launch);
  launch.job.threads = request.options.threads;
  join_ranks_of_launcher(launch, lookup);
  check_inputs(request.options, lookup);
  launch.tags = OutputTags::kNone;  // only rank 0 prints
  return run_job(std::move(launch), lookup);
}

}  // namespace lockstep
