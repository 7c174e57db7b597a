// What a strategy's replicas have: one value each (a model, an optimizer, a
// batch, a loss), a context, and a side of the optimizer.
//
// Threads: each replica's value belongs to the replica's thread while run()
//          runs.
// Source:  tf.distribute.ReplicaContext and DistributedValues.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <torch/optim/optimizer.h>

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

// One replica's side of an optimizer that a strategy has made.
//
// Threads: it belongs to its replica's thread while run() runs.
// Errors:  those of the optimizer and of the group's operations.
class StrategyOptimizer {
 public:
  // With central variables, `central` is the group of the replicas, whose first
  // one updates them, and `optimizer` is null on the others. Otherwise
  // `central` is null, and each replica updates its own.
  StrategyOptimizer(std::vector<at::Tensor> parameters,
                    std::unique_ptr<torch::optim::Optimizer> optimizer,
                    std::shared_ptr<ProcessGroup> central)
      : parameters_(std::move(parameters)),
        optimizer_(std::move(optimizer)),
        central_(std::move(central)) {}

  // Every replica calls it. Updates this replica's variables, or the central
  // ones; every replica sees the result when it returns.
  void step();

  // Drops this replica's gradients.
  void zero_grad();

  // The optimizer that steps, for its state and learning rate; null where
  // another replica has it.
  torch::optim::Optimizer* optimizer() const { return optimizer_.get(); }

 private:
  std::vector<at::Tensor> parameters_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  std::shared_ptr<ProcessGroup> central_;
};

}  // namespace lockstep
