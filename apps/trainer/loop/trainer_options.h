// Checks a run's options against each other, the data and the number of
// processes, and names options that save GPU memory.
#pragma once

#include <string>

#include "apps/trainer/loop/trainer.h"

namespace lockstep {

// InvalidArgument, with the conflict and what to do, unless the options fit.
void check_trainer_options(const TrainerOptions& options,
                           const TrainingData& data, int processes);

// The flags of `lockstep train` to try where a GPU has no room for a run: those
// that would help and are not set already.
std::string memory_advice(const TrainerOptions& options, int processes);

}  // namespace lockstep
