// One replica's side of an optimizer that a strategy has made.
//
// Threads: it belongs to its replica's thread while run() runs.
// Errors:  those of the optimizer and of the group's operations.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <memory>
#include <utility>
#include <vector>

#include "lockstep/comm/process_group.h"

namespace lockstep {

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
