// The flag of `lockstep train` that says by which way in it trains, and who its
// ranks are in consequence: processes, or threads of one.
//
// Threads: pure functions, but for what a RankPlace's lookup does.
// Errors:  as train_options.h.
#pragma once

#include "lockstep/tools/train_options.h"

namespace lockstep {

// Adds it, with its help, to `command`. `options` must outlive its parsing.
void add_strategy_flag(CLI::App& command, TrainOptions& options);

// Where GPUs are counted for the ranks: replicas of one process are ranks that
// its launcher does not know of, and TF_CONFIG has counted its workers.
RankPlace place_of_ranks(const TrainOptions& options, RankPlace place);

// Settles the number of ranks: what -n, TF_CONFIG or the launcher says, or as
// many as suit the machine. Refuses those of which two do not agree.
void choose_ranks(TrainOptions& options, const RankPlace& place);

// Refuses what does not go together with the strategy.
void check_strategy_flag(const TrainOptions& options);

// How many of the ranks one process has; `options` are complete.
int ranks_of_a_process(const TrainOptions& options);

}  // namespace lockstep
