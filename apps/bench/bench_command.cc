#include "apps/bench/bench_command.h"

#include "apps/job/companion_job.h"
#include "apps/job/flags.h"
#include "apps/job/gnuplot.h"
#include "src/base/rank_environment.h"
#include "src/launch/job/job.h"

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
  // Only rank 0 writes them; other ranks' hosts may not have the folder.
  const std::string& plot = request.options.plot;
  if (read_rank_environment(lookup).rank.value_or(0) == 0 && !plot.empty()) {
    check_file_to_write("--plot", plot);
    require_gnuplot(lookup, "--plot");
  }
  join_ranks_of_launcher(launch, lookup);
  launch.tags = OutputTags::kNone;
  return run_job(std::move(launch), lookup);
}

}  // namespace lockstep
