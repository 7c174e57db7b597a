// An optimizer step that one replica of a process makes for all replicas.
//
// Threads: every replica calls it in its own thread, like a collective.
// Errors:  those of the step and of the group's operations.
// Source:  tf.distribute.experimental.CentralStorageStrategy.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

#include "lockstep/comm/process_group.h"

namespace lockstep {

// Lets the first of `replicas` run `step`, which changes `variables`; when it
// returns, every replica sees them. On CPUs all replicas share one memory, and
// no replica reads it meanwhile. On GPUs each replica has its own variables,
// and the first one's are copied to them.
void step_centrally(ProcessGroup& replicas, at::TensorList variables,
                    const std::function<void()>& step);

}  // namespace lockstep
