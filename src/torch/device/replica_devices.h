// Resolves the devices that a user names for the replicas of one process.
//
// Errors:  InvalidArgument, with what to name instead.
#pragma once

#include <c10/core/Device.h>

#include <vector>

namespace lockstep {

// Every GPU that LibTorch can use; without a GPU, one slot of the CPU per
// compute thread that LibTorch has in this thread.
std::vector<at::Device> all_devices();

// `devices`, if replicas on them can be the ranks of a group, or all_devices()
// when empty. The CPU may be listed several times. A GPU may not, since NCCL
// has one rank per GPU; nor may GPUs be mixed with CPUs, since one group
// reduces on one kind of memory. "cuda" without a number is the current GPU.
std::vector<at::Device> replica_devices(std::vector<at::Device> devices);

}  // namespace lockstep
