// Objects of any size, as bytes, over a group.
//
// Each call returns when this rank has what it wants; sizes travel first.
//
// Threads: as ProcessGroup.
// Errors:  as ProcessGroup and Work::wait().
// Source:  torch.distributed's broadcast_object_list, all_gather_object,
//          gather_object and scatter_object_list.
#pragma once

#include <span>
#include <vector>

#include "lockstep/comm/process_group.h"

namespace lockstep {

// Rank `root`'s `object`, on every rank; elsewhere `object` is ignored.
Bytes broadcast_bytes(ProcessGroup& group, std::span<const std::byte> object,
                      int root, const CallOptions& options = {});

// Every rank's `object`, in rank order.
std::vector<Bytes> all_gather_bytes(ProcessGroup& group,
                                    std::span<const std::byte> object,
                                    const CallOptions& options = {});

// The same on rank `root`; elsewhere the result is empty.
std::vector<Bytes> gather_bytes(ProcessGroup& group,
                                std::span<const std::byte> object, int root,
                                const CallOptions& options = {});

// Rank `root`'s objects[rank()]; elsewhere `objects` is ignored.
// InvalidArgument on every rank when the root has not as many as there are
// ranks.
Bytes scatter_bytes(ProcessGroup& group, std::span<const Bytes> objects,
                    int root, const CallOptions& options = {});

}  // namespace lockstep
