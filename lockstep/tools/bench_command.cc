#include "lockstep/tools/bench_command.h"

#include "lockstep/base/rank_environment.h"
#include "lockstep/tools/companion.h"
#include "lockstep/tools/job.h"

namespace lockstep {
namespace {

constexpr Companion kBench{.name = "lockstep-bench",
                           .variable = "LOCKSTEP_BENCH_PROGRAM"};

}  // namespace

int run_bench(const BenchRequest& request, const EnvironmentLookup& lookup) {
  LaunchOptions launch;
  launch.command = {require_companion(kBench, lookup)};
  launch.command.insert(launch.command.end(), request.arguments.begin(),
                        request.arguments.end());
  // So that launchers see their rank itself.
  if (read_rank_environment(lookup).launcher != StartedBy::kNone)
    become(launch.command);
  launch.job.workers = request.options.ranks.value();
  launch.tags = OutputTags::kNone;
  apply(request.launch, launch);
  return run_job(std::move(launch), lookup);
}

}  // namespace lockstep
