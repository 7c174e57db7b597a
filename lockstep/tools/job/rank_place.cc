#include "lockstep/tools/job/rank_place.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "lockstep/base/error.h"

namespace lockstep {

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
  return std::max(1, cores / std::max(1, ranks));
}

}  // namespace lockstep
