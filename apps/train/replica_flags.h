// The flags of `lockstep train` about replicas: synchronized batch
// normalization, and checks that replicas stay identical.
//
// Errors:  those of train_options.h.
#pragma once

#include "apps/train/train_options.h"

namespace lockstep {

// Adds the flags, with their help, to `command`. `options` must outlive the
// parsing.
void add_replica_flags(CLI::App& command, TrainOptions& options);

// Refuses flags that contradict others.
void check_replica_flags(const TrainOptions& options);

}  // namespace lockstep
