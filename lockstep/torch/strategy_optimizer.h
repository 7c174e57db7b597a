// One replica's side of an optimizer that a strategy has made.
//
// Threads: belongs to its replica's thread while run() runs.
// Errors:  what the optimizer and the group's operations throw.
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
  // `central` is the group of the replicas whose variables its first one
  // updates, and `optimizer` null on the others; or null, where each updates
  // its own.
  StrategyOptimizer(std::vector<at::Tensor> parameters,
                    std::unique_ptr<torch::optim::Optimizer> optimizer,
                    std::shared_ptr<ProcessGroup> central)
      : parameters_(std::move(parameters)),
        optimizer_(std::move(optimizer)),
        central_(std::move(central)) {}

  // Every replica calls it. Updates this replica's variables, or the central
  // ones, which every replica sees when it returns.
  void step();

  // Drops this replica's gradients.
  void zero_grad();

  // What makes the step, for its state and learning rate; null where another
  // replica has it.
  torch::optim::Optimizer* optimizer() const { return optimizer_.get(); }

 private:
  std::vector<at::Tensor> parameters_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  std::shared_ptr<ProcessGroup> central_;
};

}  // namespace lockstep
