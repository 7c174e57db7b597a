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
  // `optimizer` is null on replicas whose variables another one updates;
  // `shared` is the group of those that meet around a step for that reason, or
  // null.
  StrategyOptimizer(std::vector<at::Tensor> parameters,
                    std::unique_ptr<torch::optim::Optimizer> optimizer,
                    std::shared_ptr<ProcessGroup> shared)
      : parameters_(std::move(parameters)),
        optimizer_(std::move(optimizer)),
        shared_(std::move(shared)) {}

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
  std::shared_ptr<ProcessGroup> shared_;
};

}  // namespace lockstep
