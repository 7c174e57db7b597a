// The number of ranks of `lockstep train`, which --strategy makes processes or
// threads of one process.
//
// Threads: any thread on which the lookup of a RankPlace may run.
// Errors:  those of train_options.h.
#pragma once

#include "apps/train/train_options.h"

namespace lockstep {

// The place in which GPUs are counted for the ranks. The launcher does not see
// the replicas of one process, and TF_CONFIG has already counted its workers.
RankPlace place_of_ranks(const TrainOptions& options, RankPlace place);

// Sets the number of ranks, and of those in each process: from -n, TF_CONFIG or
// the launcher, otherwise a number that suits the machine. Refuses
// contradictory numbers.
void choose_ranks(TrainOptions& options, const RankPlace& place);

}  // namespace lockstep
