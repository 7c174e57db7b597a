// An operation as calls of NCCL: what NCCL has by itself, and what is made of
// sends, receives and copies.
//
// Threads: pure functions.
// Errors:  what the line throws.
#pragma once

#include "lockstep/comm/nccl/gpu.h"
#include "lockstep/comm/operation.h"

namespace lockstep {

// Whether NCCL can do it: no bitwise reductions, messages without tags and from
// a rank that is named, buffers on a GPU.
bool nccl_supports(const Operation& operation);

// Starts the calls of a collective, on rank `rank` of `size`, as one operation.
void issue_collective(const Operation& operation, int rank, int size,
                      GpuLine& line);

// The same for a message, on a line of two ranks.
void issue_message(const Operation& operation, GpuLine& line);

}  // namespace lockstep
