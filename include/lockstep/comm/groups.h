// Groups: how a program joins the default group, makes others from it, and
// passes objects of any size between their ranks. process_group.h has their
// operations.
#pragma once

#include <chrono>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/base/buffer.h"
#include "lockstep/comm/process_group.h"

namespace lockstep {

// How a program joins its group: init_process_group, as in torch.distributed.
//
//     lockstep::init_process_group();           // backend auto, env://
//     auto group = lockstep::default_group();
//
// A program started alone, without any environment, becomes the only rank of a
// world of size 1.
//
// Threads: one thread at a time.
// Errors:  InvalidArgument for invalid settings, Timeout naming the ranks that
//          never came, NetworkError when the store is unreachable.

struct InitOptions {
  // "shm", "gloo", "mpi", "hybrid", "reference", or "auto": the fastest that
  // reaches every rank. Every backend uses NCCL for buffers on a GPU, if its
  // plug-in is installed; "nccl" is "auto", and fails at once without a GPU.
  std::string backend = "auto";
  // "env://" (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT), "tcp://host:port"
  // (rank 0 serves there) or "file:///path"; the last two need world_size and
  // rank, either here or in the environment.
  std::string init_method = "env://";
  std::optional<int> world_size{};
  std::optional<int> rank{};
  // How long a collective may take: 30 minutes unless set here or by
  // LOCKSTEP_TIMEOUT. How long the ranks may take to find each other is set by
  // LOCKSTEP_RENDEZVOUS_TIMEOUT alone, in seconds: 300 by default.
  std::optional<std::chrono::nanoseconds> timeout{};
};

// Finds the other ranks and makes the default group. Throws InvalidArgument
// when the default group exists already.
std::shared_ptr<ProcessGroup> init_process_group(
    const InitOptions& options = {});

// The default group. Throws InvalidArgument before init_process_group() and
// after destroy_process_group().
std::shared_ptr<ProcessGroup> default_group();
bool is_initialized();

// This rank in the default group, and the number of its ranks.
int get_rank();
int get_world_size();
// This rank among those of its host, as LOCAL_RANK says, which launchers set:
// the number of its GPU. InvalidArgument if the group has several ranks and no
// launcher has set it.
int get_node_local_rank();

// Leaves the default group, if it exists: the group is unusable afterwards,
// even while the caller still holds it or a Work of it. Other ranks that wait
// for this one get PeerFailure at once.
void destroy_process_group();

// Making groups from ranks of another group, and the numbers of their ranks.
//
// Threads: one thread per rank at a time; any for the numbers.
// Errors:  InvalidArgument for an invalid list of ranks; Timeout naming the
//          ranks that never came.
// Source:  torch.distributed.new_group, get_global_rank, …; MPI_Comm_split.

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

// Collectives on objects of any size, as bytes.
//
// Each call returns when this rank has its result; the ranks exchange sizes
// first.
//
// Threads: those of ProcessGroup.
// Errors:  those of ProcessGroup and Work::wait().
// Source:  torch.distributed's broadcast_object_list, all_gather_object,
//          gather_object and scatter_object_list.

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
