#include "lockstep/tools/train_command.h"

#include <utility>

#include "lockstep/base/tf_config.h"
#include "lockstep/launch/cpu_share.h"
#include "lockstep/tools/device_flags.h"
#include "lockstep/tools/job.h"
#include "lockstep/tools/strategy_flags.h"

namespace lockstep {
namespace {

constexpr Companion kTrain{
    .name = "lockstep-train",
    .variable = "LOCKSTEP_TRAIN_PROGRAM",
    .remedy = "this build has no LibTorch; build with it (./dev build)"};

std::vector<std::string> command_of(const TrainRequest& request,
                                    const EnvironmentLookup& lookup) {
  std::vector<std::string> command{require_companion(kTrain, lookup)};
  command.insert(command.end(), request.arguments.begin(),
                 request.arguments.end());
  return command;
}

}  // namespace

std::optional<std::string> find_train_program(const EnvironmentLookup& lookup) {
  return find_companion(kTrain, lookup);
}

void become_named_worker(const TrainRequest& request,
                         const EnvironmentLookup& lookup) {
  if (request.options.strategy == "multi-worker" && read_tf_config(lookup))
    become(command_of(request, lookup));
}

int run_training(const TrainRequest& request, const EnvironmentLookup& lookup,
                 const JobView& view) {
  const int processes =
      request.options.ranks.value() / ranks_of_a_process(request.options);
  LaunchOptions launch = launch_options({.companion = kTrain,
                                         .arguments = request.arguments,
                                         .ranks = processes,
                                         .launch = request.launch},
                                        lookup);
  apply(request.options.devices, lookup, launch);
  launch.job.threads = request.options.threads;
  if (!launch.job.threads && !lookup("OMP_NUM_THREADS"))
    launch.job.threads = default_threads(usable_cores(), processes);
  join_ranks_of_launcher(launch, lookup);
  return run_job(std::move(launch), lookup, view);
}

}  // namespace lockstep
