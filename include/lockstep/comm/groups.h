// Making groups from ranks of another group, and the numbers of their ranks.
//
// Threads: one thread per rank at a time; any for the numbers.
// Errors:  InvalidArgument for an invalid list of ranks; Timeout naming the
//          ranks that never came.
// Source:  torch.distributed.new_group, get_global_rank, …; MPI_Comm_split.
#pragma once

#include <chrono>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/comm/process_group.h"

namespace lockstep {

struct GroupOptions {
  // As in InitOptions; the parent's if empty.
  std::string backend{};
  std::optional<std::chrono::nanoseconds> timeout{};
};

// Makes the group of `ranks`, which are distinct ranks of `parent`; the first
// becomes rank 0, and so on. Every member calls this with the same ranks; other
// ranks need not call it, and get a group whose is_member() is false. Groups
// without a common member may be made in any order.
//
// The group is made on all its members or on none: when one gives up or its
// process ends, all get an error at once. Each may then call this again, and
// they meet, whatever number of attempts each has made: a rank that comes after
// others have given up gets their error once.
std::shared_ptr<ProcessGroup> new_group(ProcessGroup& parent,
                                        std::span<const int> ranks,
                                        const GroupOptions& options = {});
// The same for a list in braces: new_group(*group, {0, 1}).
inline std::shared_ptr<ProcessGroup> new_group(
    ProcessGroup& parent, std::initializer_list<int> ranks,
    const GroupOptions& options = {}) {
  return new_group(parent, std::span(ranks.begin(), ranks.size()), options);
}

// Makes one group per color: a rank's group holds all ranks that pass its
// color, ordered by key, then by rank in `parent`. Every rank of `parent` calls
// this; a rank with a negative color joins no group.
struct Color {
  int color = 0;
  int key = 0;
};
std::shared_ptr<ProcessGroup> split(ProcessGroup& parent, Color mine,
                                    const GroupOptions& options = {});

// The ranks of the job that `group` consists of, in the order of its own ranks.
std::vector<int> get_process_group_ranks(const ProcessGroup& group);

// The rank in the job of rank `group_rank` of `group`, and the reverse. Throw
// InvalidArgument for a rank that the group does not have.
int get_global_rank(const ProcessGroup& group, int group_rank);
int get_group_rank(const ProcessGroup& group, int global_rank);

// A barrier that names the late ranks: every rank that came gets a Timeout
// listing all ranks that did not reach rank 0 within `timeout` of rank 0's
// call; a late rank gets it when it comes. (If rank 0 itself does not come
// within `timeout` of another rank's call, that rank's Timeout names rank 0.)
// The barrier uses the job's store, not the backend, so a failure leaves the
// group and its operations in flight untouched.
void monitored_barrier(ProcessGroup& group, std::chrono::nanoseconds timeout);

}  // namespace lockstep
