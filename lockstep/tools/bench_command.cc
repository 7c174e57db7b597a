#include "lockstep/tools/bench_command.h"

#include "lockstep/base/rank_environment.h"
#include "lockstep/tools/job.h"

namespace lockstep {
namespace {

constexpr Companion kBench{.name = "lockstep-bench",
                           .variable = "LOCKSTEP_BENCH_PROGRAM"};

}  // namespace

int run_bench(const BenchRequest& request, const EnvironmentLookup& lookup) {
  LaunchOptions launch = launch_options({.companion = kBench,
                                         .arguments = request.arguments,
                                         .ranks = request.options.ranks.value(),
                                         .launch = request.launch},
                                        lookup);
  apply(request.options.devices, lookup, launch);
  // So that launchers see their rank itself.
  if (read_rank_environment(lookup).launcher != StartedBy::kNone)
    become(launch.command, launch.environment);
  launch.tags = OutputTags::kNone;
  return run_job(std::move(launch), lookup);
}

}  // namespace lockstep
