// The flags of `lockstep train` about what ranks have in common:
// synchronized batch normalization, and checks that replicas stay the same.
//
// Errors:  as train_options.h.
#pragma once

#include "lockstep/tools/train_options.h"

namespace lockstep {

// Adds them, with their help, to `command`. `options` must outlive its parsing.
void add_replica_flags(CLI::App& command, TrainOptions& options);

// Refuses those that do not fit the others.
void check_replica_flags(const TrainOptions& options);

}  // namespace lockstep
