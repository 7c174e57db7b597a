// Translates an operation into NCCL calls: its collectives where they exist,
// otherwise sends, receives and copies.
//
// Errors:  those of the line.
#pragma once

#include "src/comm/nccl/gpu.h"
#include "src/comm/operation/operation.h"

namespace lockstep {

// Whether NCCL can carry it out: no bitwise reductions; messages need tag 0 and
// a named source rank; buffers lie on a GPU.
bool nccl_supports(const Operation& operation);

// Starts the calls of a collective on rank `rank` of `size` as one operation.
void issue_collective(const Operation& operation, int rank, int size,
                      GpuCommunicator& line);

// The same for a message, on a line of two ranks.
void issue_message(const Operation& operation, GpuCommunicator& line);

}  // namespace lockstep
