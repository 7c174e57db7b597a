// The flag of `lockstep train` that selects the frontend, and thereby whether
// its ranks are processes or threads of one process.
//
// Threads: any thread on which the lookup of a RankPlace may run.
// Errors:  those of train_options.h.
#pragma once

#include "apps/train/train_options.h"

namespace lockstep {

// Adds the flag, with its help, to `command`. `options` must outlive the
// parsing.
void add_strategy_flag(CLI::App& command, TrainOptions& options);

// The place in which GPUs are counted for the ranks. The launcher does not see
// the replicas of one process, and TF_CONFIG has already counted its workers.
RankPlace place_of_ranks(const TrainOptions& options, RankPlace place);

// Sets the number of ranks, and of those in each process: from -n, TF_CONFIG or
// the launcher, otherwise a number that suits the machine. Refuses
// contradictory numbers.
void choose_ranks(TrainOptions& options, const RankPlace& place);

// Refuses options that the strategy does not support.
void check_strategy_flag(const TrainOptions& options);

}  // namespace lockstep
