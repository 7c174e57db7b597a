#include "apps/job/companion_job.h"

#include <fmt/format.h>

#include <cstdio>

#include "apps/job/rank_place.h"
#include "src/base/rank_environment.h"

namespace lockstep {

LaunchOptions launch_options(const CompanionJob& job,
                             const EnvironmentLookup& lookup) {
  LaunchOptions launch;
  launch.command = {require_companion(job.companion, lookup)};
  launch.command.insert(launch.command.end(), job.arguments.begin(),
                        job.arguments.end());
  launch.job.workers = job.ranks;
  launch.job.library_folder = torch_library_folder(lookup);
  apply(job.launch, launch);
  return launch;
}

void join_ranks_of_launcher(const LaunchOptions& options,
                            const EnvironmentLookup& lookup) {
  const RankEnvironment place = read_rank_environment(lookup);
  check_rank_environment(place);
  if (place.launcher == StartedBy::kNone) return;
  if (*place.rank == 0)
    std::fputs(fmt::format("lockstep: joins the {} rank{} that {} started\n",
                           *place.world_size, *place.world_size == 1 ? "" : "s",
                           name_of(place.launcher))
                   .c_str(),
               stderr);
  // So that launchers see their rank as the process itself.
  become(options.command, options.environment);
}

}  // namespace lockstep
