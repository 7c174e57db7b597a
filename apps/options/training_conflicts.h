// Options of a training run that exclude each other: one table, which the
// command and the trainer check.
//
// Threads: any thread.
#pragma once

#include "apps/options/training_options.h"

namespace lockstep {

// InvalidArgument, naming both flags and the reason, for the first pair of the
// table that the options have.
void check_conflicts(const TrainerOptions& options);

}  // namespace lockstep
