// How many ranks a command starts, and compute threads in each, where nobody
// says.
//
// Errors:  InvalidArgument with one line.
#pragma once

#include <functional>
#include <optional>

#include "lockstep/base/environment.h"

namespace lockstep {

// Where a command's options are to be put to work.
struct RankPlace {
  int cores = 1;  // that this process may use
  // The number of ranks where it is settled already, as in a worker.
  std::optional<int> world_size = std::nullopt;
  // Where TF_CONFIG may be; empty: nowhere.
  EnvironmentLookup lookup{};
  // Counts the GPUs that can be seen there; empty: nobody looks.
  std::function<int()> gpus{};
};

// The number of ranks: that of the place where it is settled, else `asked`,
// else `usual`. Refuses an `asked` that is not the place's.
int settle_ranks(std::optional<int> asked, const RankPlace& place, int usual);

// Nobody is given more ranks without asking for them.
inline constexpr int kMostDefaultRanks = 8;

// The number of ranks that train where none is asked for: the largest power of
// two that is at most `cores` and kMostDefaultRanks.
int default_ranks(int cores);

// The compute threads of a rank where nobody says otherwise: cores to spare are
// put to use.
int default_threads(int cores, int ranks);

}  // namespace lockstep
