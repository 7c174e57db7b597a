// The step of variables that one replica of a process updates for all.
//
// Threads: every replica calls it in its own thread, like a collective.
// Errors:  what the step and the group's operations throw.
// Source:  tf.distribute.experimental.CentralStorageStrategy.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

#include "lockstep/comm/process_group.h"

namespace lockstep {

// Lets the first of `replicas` run `step`, which changes `variables`; when it
// returns, every replica sees them. On CPUs all replicas' variables are one
// memory, and nobody reads it meanwhile. On GPUs each has its own, and is given
// the first one's.
void step_centrally(ProcessGroup& replicas, at::TensorList variables,
                    const std::function<void()>& step);

}  // namespace lockstep
