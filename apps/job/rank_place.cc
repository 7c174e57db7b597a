#include "apps/job/rank_place.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "apps/job/flags.h"
#include "lockstep/base/error.h"

namespace lockstep {

void check_rank_environment(const RankEnvironment& environment) {
  if (environment.rank.has_value() == environment.world_size.has_value())
    return;
  const bool by_torchrun = environment.launcher == StartedBy::kTorchrun;
  const std::string set = environment.rank ? "rank" : "number of ranks";
  const std::string missing = environment.rank ? "number of ranks" : "rank";
  if (!by_torchrun)
    throw InvalidArgument(fmt::format(
        "the environment of {} has a {} but no {}\n"
        "  next:    start the program by {}, or unset its variables",
        name_of(environment.launcher), set, missing,
        name_of(environment.launcher)));
  throw InvalidArgument(fmt::format(
      "the environment variable {} is set, but {} is not\n"
      "  next:    set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT on every "
      "rank, or unset RANK and WORLD_SIZE: lockstep then starts the ranks",
      environment.rank ? "RANK" : "WORLD_SIZE",
      environment.rank ? "WORLD_SIZE" : "RANK"));
}

int settle_ranks(std::optional<int> asked, const RankPlace& place, int usual) {
  if (!place.world_size) return asked.value_or(usual);
  if (asked.value_or(*place.world_size) != *place.world_size)
    throw InvalidArgument(
        fmt::format("--ranks is {}, but this program was started as one of {} "
                    "ranks: leave --ranks out",
                    *asked, *place.world_size));
  return *place.world_size;
}

int default_ranks(int cores) {
  const int most = std::clamp(cores, 1, kMostDefaultRanks);
  return static_cast<int>(std::bit_floor(static_cast<unsigned>(most)));
}

int default_threads(int cores, int ranks) {
  return std::clamp(cores / std::max(1, ranks), 1, kMostThreadsOfARank);
}

}  // namespace lockstep
