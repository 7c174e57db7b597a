// Adaptive summation: ranks' tensors combined two by two, in a tree over the
// ranks. Two that are orthogonal are added, two that are parallel averaged:
// a (1 - ab / 2aa) + b (1 - ab / 2bb).
//
// Threads: called by every rank of the group, like the collectives inside.
// Errors:  what ProcessGroup's operations throw.
// Source:  Maleki et al., "Scaling Distributed Training with Adaptive
//          Summation", MLSys 2021; Horovod's allreduce(op = Adasum).
#pragma once

#include <ATen/core/Tensor.h>

#include "lockstep/comm/process_group.h"

namespace lockstep::horovod {

// Throws InvalidArgument, naming `what`, unless the group has 1, 2, 4, 8, …
// ranks.
void check_ranks_of_adasum(const ProcessGroup& group, const char* what);

// Gives every rank all ranks' combination of each tensor, in place. Tensors are
// of floating point and contiguous, and of the same types and shapes on every
// rank. Rank 0 computes in float64 and needs memory for all ranks' tensors. One
// gather and one broadcast for each device and type.
void combine_by_adasum(ProcessGroup& group, at::TensorList tensors);

}  // namespace lockstep::horovod
