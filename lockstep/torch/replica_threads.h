// The replicas of one process as ranks of a group: threads that can call
// collectives with each other. Where devices are GPUs, each thread has its own
// as the current one, and on it the stream that is current in the caller's:
// what the caller has given its devices comes before what replicas do, and what
// it gives them afterwards comes after.
//
// Threads: run() is called by one thread at a time, and not from within run().
// Errors:  what make_group() throws. When the function given to run() throws on
//          a replica, the group is aborted, so that no other one waits for it;
//          run() throws what the first such replica threw, not the PeerFailures
//          that follow on the others.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <functional>
#include <optional>
#include <vector>

#include "lockstep/torch/device_threads.h"
#include "lockstep/torch/per_replica.h"

namespace lockstep {

class ReplicaThreads {
 public:
  // A replica on each of `devices`, at least one, which replica_devices()
  // takes; `timeout` as in InitOptions.
  explicit ReplicaThreads(const std::vector<at::Device>& devices,
                          std::optional<std::chrono::nanoseconds> timeout = {});
  // All replicas leave the group, side by side.
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

// Calls body(here); when that throws, tells the other replicas.
void run_or_abort(const ReplicaContext& here,
                  const std::function<void(const ReplicaContext&)>& body);

}  // namespace lockstep
