// The backend "nccl": operations on buffers that lie on a GPU.
//
// Streams order an operation: it begins when the earlier work of the caller's
// stream is done, and Work::wait() makes that stream wait for it and returns.
// NCCL detects neither mismatched calls nor, on one host, a dead rank. So the
// ranks also have a CPU group: each rank announces its calls there, and a
// thread checks whether all calls match, whether a rank is gone and whether a
// deadline has passed. A rank that gives up ends the CPU group, so that all
// ranks do. See docs/design/nccl.md.
//
// Threads: as Backend.
// Errors:  those of Backend; making one throws InvalidArgument when the
//          plug-in, a driver or the device is missing or two ranks have the
//          same device, and Timeout naming ranks that do not come.
#pragma once

#include <memory>

#include "src/comm/operation/backend.h"

namespace lockstep {

struct DeviceGroup;

// All ranks of the group call this with the same store and identity.name, each
// with its own device.
std::shared_ptr<Backend> make_nccl_backend(Device device,
                                           const DeviceGroup& group);

}  // namespace lockstep
