// The backend "nccl": operations on buffers that lie on a GPU.
//
// An operation is ordered by streams: it begins when what the caller's stream
// was given before is done, and Work::wait() lets that stream wait for it and
// returns. Beside NCCL, which notices neither that ranks disagree nor, on one
// host, that one has died, the ranks have a group of the CPU of their own: each
// tells it what it called, and a thread looks whether all called the same,
// whether somebody is gone, and whether a deadline has passed. Whoever gives up
// ends that group, so that all do. See docs/design/nccl.md.
//
// Threads: as Backend.
// Errors:  as Backend; from making one InvalidArgument where the plug-in, a
//          driver or the device is missing, and where two ranks have the same
//          device; Timeout naming ranks that do not come.
#pragma once

#include <memory>

#include "lockstep/comm/backend.h"

namespace lockstep {

struct DeviceGroup;

// All ranks of the group call this with the same store and identity.name, each
// with its own device.
std::shared_ptr<Backend> make_nccl_backend(Device device,
                                           const DeviceGroup& group);

}  // namespace lockstep
