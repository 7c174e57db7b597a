// The default number of ranks of a command, and of compute threads per rank.
//
// Errors:  InvalidArgument with one line.
#pragma once

#include <functional>
#include <optional>

#include "src/base/environment.h"
#include "src/base/rank_environment.h"

namespace lockstep {

// The environment in which a command's options apply.
struct RankPlace {
  int cores = 1;  // that this process may use
  // The number of ranks if it is already fixed, as in a worker.
  std::optional<int> world_size = std::nullopt;
  // Reads TF_CONFIG; empty: it is not read.
  EnvironmentLookup lookup{};
  // Counts the visible GPUs; empty: they are not counted.
  std::function<int()> gpus{};
};

// InvalidArgument for a rank without the number of ranks or the reverse, which
// is a mistake of the launcher or of the user who sets RANK and WORLD_SIZE. The
// message names the missing one.
void check_rank_environment(const RankEnvironment& environment);

// The number of ranks: that of `place` if fixed, otherwise `asked`, otherwise
// `usual`. Refuses an `asked` that contradicts `place`.
int settle_ranks(std::optional<int> asked, const RankPlace& place, int usual);

// The default never exceeds this number of ranks.
inline constexpr int kMostDefaultRanks = 8;

// The default number of training ranks: the largest power of two that is at
// most `cores` and kMostDefaultRanks.
int default_ranks(int cores);

// The default number of compute threads per rank, which also uses spare cores,
// and of workers that read a folder: from 1 to what --threads and --workers
// take.
int default_threads(int cores, int ranks);

}  // namespace lockstep
