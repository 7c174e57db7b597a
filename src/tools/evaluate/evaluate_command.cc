#include "src/tools/evaluate/evaluate_command.h"

#include <utility>

#include "src/tools/job/job.h"

namespace lockstep {
namespace {

constexpr Companion kEvaluate{
    .name = "lockstep-evaluate",
    .variable = "LOCKSTEP_EVALUATE_PROGRAM",
    .remedy = "this build has no LibTorch; build with it (./dev build)"};

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
  launch.tags = OutputTags::kNone;  // only rank 0 prints
  return run_job(std::move(launch), lookup);
}

}  // namespace lockstep
