// One value per replica of a strategy: a model, an optimizer, a batch, a loss.
//
// Threads: each replica's value belongs to the replica's thread while run()
//          runs.
// Source:  tf.distribute.ReplicaContext and DistributedValues.
#pragma once

#include <c10/core/Device.h>

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "lockstep/comm/process_group.h"

namespace lockstep {

// The replica on which a step runs.
struct ReplicaContext {
  int local_replica = 0;  // among those of this process
  at::Device device = at::kCPU;
  // All replicas as ranks: its rank is the replica's number.
  std::shared_ptr<ProcessGroup> group{};

  int replica_id_in_sync_group() const { return group->rank(); }
  int num_replicas_in_sync() const { return group->size(); }
};

// A handle: copies refer to the same values.
template <class Value>
class PerReplica {
 public:
  // One for each local replica, in their order.
  explicit PerReplica(std::vector<std::shared_ptr<Value>> values)
      : values_(std::move(values)) {}

  Value& operator[](const ReplicaContext& here) const {
    return *values_[static_cast<std::size_t>(here.local_replica)];
  }
  // For use outside of run(): the value of this process's `local_replica`-th
  // replica, by default the first, which is the one to save and to evaluate.
  Value& local(int local_replica = 0) const {
    return *values_[static_cast<std::size_t>(local_replica)];
  }
  std::size_t size() const { return values_.size(); }

 private:
  std::vector<std::shared_ptr<Value>> values_;
};

}  // namespace lockstep
