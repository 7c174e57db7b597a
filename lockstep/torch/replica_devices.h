// The devices of the replicas of one process, as a user names them.
//
// Threads: functions of their arguments, and of what devices there are.
// Errors:  InvalidArgument, saying what to name instead.
#pragma once

#include <c10/core/Device.h>

#include <vector>

namespace lockstep {

// Every GPU that LibTorch can use, or where there is none as many slots of the
// CPU as it has compute threads in this thread.
std::vector<at::Device> all_devices();

// `devices`, if replicas on them can be the ranks of a group, or all_devices()
// when empty. A CPU may be there several times; a GPU may not, since NCCL has
// one rank on each, nor GPUs beside CPUs, since one group reduces on one kind
// of memory. "cuda" without a number is the current one.
std::vector<at::Device> replica_devices(std::vector<at::Device> devices);

}  // namespace lockstep
