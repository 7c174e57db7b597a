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
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "lockstep/comm/process_group.h"

namespace lockstep {

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

// Leaves the default group, if it exists: the group is unusable afterwards,
// even while the caller still holds it or a Work of it. Other ranks that wait
// for this one get PeerFailure at once.
void destroy_process_group();

}  // namespace lockstep
