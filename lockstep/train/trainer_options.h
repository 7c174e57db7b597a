// Whether a run's options fit each other, the data and the number of processes.
//
// Threads: a pure function.
#pragma once

#include "lockstep/train/trainer.h"

namespace lockstep {

// InvalidArgument, naming what does not fit and what to do, unless they do.
void check_trainer_options(const TrainerOptions& options,
                           const TrainingData& data, int processes);

}  // namespace lockstep
