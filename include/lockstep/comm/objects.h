// Collectives on objects of any size, as bytes.
//
// Each call returns when this rank has its result; the ranks exchange sizes
// first.
//
// Threads: those of ProcessGroup.
// Errors:  those of ProcessGroup and Work::wait().
// Source:  torch.distributed's broadcast_object_list, all_gather_object,
//          gather_object and scatter_object_list.
#pragma once

#include <span>
#include <vector>

#include "lockstep/base/data_type.h"
#include "lockstep/comm/process_group.h"

namespace lockstep {

// Returns rank `root`'s `object` on every rank; the other ranks' `object` is
// ignored.
Bytes broadcast_bytes(ProcessGroup& group, std::span<const std::byte> object,
                      int root, const CallOptions& options = {});

// Returns every rank's `object`, in rank order.
std::vector<Bytes> all_gather_bytes(ProcessGroup& group,
                                    std::span<const std::byte> object,
                                    const CallOptions& options = {});

// The same on rank `root`; on other ranks the result is empty.
std::vector<Bytes> gather_bytes(ProcessGroup& group,
                                std::span<const std::byte> object, int root,
                                const CallOptions& options = {});

// Returns rank `root`'s objects[rank()]; the other ranks' `objects` is ignored.
// Throws InvalidArgument on every rank unless the root passes one object per
// rank.
Bytes scatter_bytes(ProcessGroup& group, std::span<const Bytes> objects,
                    int root, const CallOptions& options = {});

}  // namespace lockstep
