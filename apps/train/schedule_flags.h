// What the flags of `lockstep train` about the learning rate schedule must
// agree on with each other.
//
// Errors:  those of train_options.h.
#pragma once

#include "apps/train/train_options.h"

namespace lockstep {

// Refuses flags that contradict others.
void check_schedule_flags(const TrainOptions& options);

}  // namespace lockstep
