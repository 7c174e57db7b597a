// The flags of `lockstep train` about the learning rate schedule, named as in
// torchvision's reference scripts where those have them.
//
// Errors:  those of train_options.h.
#pragma once

#include "apps/train/train_options.h"

namespace lockstep {

// Adds the flags, with their help, to `command`. `options` must outlive the
// parsing.
void add_schedule_flags(CLI::App& command, TrainOptions& options);

// Refuses flags that contradict others.
void check_schedule_flags(const TrainOptions& options);

}  // namespace lockstep
