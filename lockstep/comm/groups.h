// Groups made from groups.
//
// Threads: call these from one thread of a rank at a time.
// Errors:  InvalidArgument for ranks that cannot be a group; Timeout naming the
//          ranks that never came.
// Source:  torch.distributed.new_group; MPI_Comm_split.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "lockstep/comm/process_group.h"

namespace lockstep {

struct GroupOptions {
  // As InitOptions; the parent's when empty.
  std::string backend{};
  std::optional<std::chrono::nanoseconds> timeout{};
};

// The group of `ranks`, which are ranks of `parent`, each once; the first
// becomes rank 0, and so on. Every member calls this with the same ranks; the
// others need not, and get a group whose is_member() is false. Groups that
// share no member may be made in any order.
//
// The group is made on all its members, or on none: where one gives up, or its
// process ends, all get an error at once. Each may then call this again, and
// they meet, however often each has tried: a rank that comes after others have
// given up gets their error, once.
std::shared_ptr<ProcessGroup> new_group(ProcessGroup& parent,
                                        std::span<const int> ranks,
                                        const GroupOptions& options = {});

// One group for each color: a rank's group is of all ranks that give its color,
// ordered by key, then by rank in `parent`. Every rank of `parent` calls this;
// one that gives a negative color becomes a member of none.
struct Color {
  int color = 0;
  int key = 0;
};
std::shared_ptr<ProcessGroup> split(ProcessGroup& parent, Color mine,
                                    const GroupOptions& options = {});

// A barrier that names who is late: Timeout, on every rank that came, with all
// the ranks of which rank 0 heard nothing within `timeout` of its own call; on
// a late rank too, when it comes. (Where rank 0 itself does not come within
// `timeout` of another's call, that one names rank 0.) It goes through the
// job's store, not through the backend, so that the group and what is in flight
// in it are untouched whatever happens.
void monitored_barrier(ProcessGroup& group, std::chrono::nanoseconds timeout);

}  // namespace lockstep
