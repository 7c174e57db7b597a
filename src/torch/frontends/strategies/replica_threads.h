// The replicas of one process as ranks of a group: threads that call
// collectives with each other. On GPUs each thread's current device is its own,
// with the caller's current stream on it: the replicas' work comes after the
// caller's earlier work and before its later work.
//
// Threads: run() is called by one thread at a time, and not from within run().
// Errors:  those of make_group(). When the function given to run() throws on a
//          replica, the group is aborted, so that no other replica waits for
//          it; run() throws what the first such replica threw, not the
//          PeerFailures that follow on the others.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <functional>
#include <optional>
#include <vector>

#include "lockstep/torch/strategies.h"
#include "src/torch/device/device_threads.h"

namespace lockstep::strategies {

class ReplicaThreads {
 public:
  // One replica on each of `devices`, at least one, which must suit
  // replica_devices(); `timeout` as in InitOptions.
  explicit ReplicaThreads(const std::vector<at::Device>& devices,
                          std::optional<std::chrono::nanoseconds> timeout = {});
  // All replicas leave the group concurrently.
  ~ReplicaThreads();

  ReplicaThreads(const ReplicaThreads&) = delete;
  ReplicaThreads& operator=(const ReplicaThreads&) = delete;

  const std::vector<ReplicaContext>& contexts() const { return contexts_; }

  // Calls body on each replica, in its thread, and returns when all are done.
  void run(const std::function<void(const ReplicaContext&)>& body);

 private:
  std::vector<ReplicaContext> contexts_;
  DeviceThreads threads_;
};

// Calls body(here); when it throws, aborts the group and so informs the other
// replicas.
void run_or_abort(const ReplicaContext& here,
                  const std::function<void(const ReplicaContext&)>& body);

}  // namespace lockstep::strategies
