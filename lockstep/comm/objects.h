// Objects of any size, as bytes, over a group.
//
// Each call returns when this rank has what it wants; sizes travel first.
//
// Threads: as ProcessGroup.
// Errors:  as ProcessGroup and Work::wait().
// Source:  torch.distributed.broadcast_object_list, all_gather_object.
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

}  // namespace lockstep
