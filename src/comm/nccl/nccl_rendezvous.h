// How the ranks of a group on GPUs find each other.
//
// Threads: called once by each rank, which uses its device.
// Errors:  InvalidArgument when a device does not exist or two ranks have the
//          same device; Timeout naming a rank that does not come.
#pragma once

#include <memory>

#include "src/comm/nccl/device_group.h"
#include "src/comm/nccl/gpu.h"
#include "src/comm/rendezvous/store_all_gather.h"

namespace lockstep {

// Throws unless this process sees the device.
void check_gpu(const Gpu& gpu);

// A line of all ranks, which may not be ready yet. Throws for two ranks on one
// GPU unless the settings let ranks share GPUs.
std::unique_ptr<GpuCommunicator> rendezvous_on_gpus(const Gpu& gpu,
                                                    const DeviceGroup& group,
                                                    const GatherWait& wait);

}  // namespace lockstep
