#include "lockstep/tools/train_command.h"

#include <utility>

#include "lockstep/launch/cpu_share.h"
#include "lockstep/tools/companion.h"
#include "lockstep/tools/job.h"

namespace lockstep {
namespace {

constexpr Companion kTrain{
    .name = "lockstep-train",
    .variable = "LOCKSTEP_TRAIN_PROGRAM",
    .remedy = "this build has no LibTorch; build with it (./dev build)"};

}  // namespace

std::optional<std::string> find_train_program(const EnvironmentLookup& lookup) {
  return find_companion(kTrain, lookup);
}

int run_training(const TrainRequest& request, const EnvironmentLookup& lookup,
                 const JobView& view) {
  LaunchOptions launch;
  launch.command = {require_companion(kTrain, lookup)};
  launch.command.insert(launch.command.end(), request.arguments.begin(),
                        request.arguments.end());
  const int ranks = request.options.ranks.value();
  launch.job.workers = ranks;
  launch.job.threads = request.options.threads;
  if (!launch.job.threads && !lookup("OMP_NUM_THREADS"))
    launch.job.threads = default_threads(usable_cores(), ranks);
  apply(request.launch, launch);
  return run_job(std::move(launch), lookup, view);
}

}  // namespace lockstep
