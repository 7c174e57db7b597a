// Whether a run's options fit each other, the data and the number of processes,
// and which of them would take less of a GPU's memory.
//
// Threads: a pure function.
#pragma once

#include <string>

#include "lockstep/train/trainer.h"

namespace lockstep {

// InvalidArgument, naming what does not fit and what to do, unless they do.
void check_trainer_options(const TrainerOptions& options,
                           const TrainingData& data, int processes);

// What to try where a GPU has no room for a run, by the flags of `lockstep
// train`: those that would help and are not set already.
std::string memory_advice(const TrainerOptions& options, int processes);

}  // namespace lockstep
