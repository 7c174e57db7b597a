// The flags of `lockstep train` about the learning rate over a run: those of
// torchvision's reference scripts, where they have them.
//
// Errors:  as train_options.h.
#pragma once

#include "lockstep/tools/train_options.h"

namespace lockstep {

// Adds them, with their help, to `command`. `options` must outlive its parsing.
void add_schedule_flags(CLI::App& command, TrainOptions& options);

// Refuses those that do not fit the others, of which --lr must be settled, and
// fills in what was left open.
void complete_schedule_flags(TrainOptions& options);

}  // namespace lockstep
