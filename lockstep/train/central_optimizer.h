// An optimizer of parameters that are one memory for all replicas of a process:
// each replica has one, and the first one's makes the steps.
//
// `Optimizer` is one of fused_optimizer.h's. The others keep no state; their
// learning rates and clipping may be set like the first one's, and have no
// effect.
//
// Threads: belongs to its replica's thread. Every replica steps at the same
//          point of the program.
// Errors:  what the optimizer and the group's barriers throw.
// Source:  tf.distribute.experimental.CentralStorageStrategy.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <memory>
#include <utility>

#include "lockstep/comm/process_group.h"

namespace lockstep {

template <class Optimizer>
class CentralOptimizer final : public Optimizer {
 public:
  // `replicas`: those that share the parameters.
  CentralOptimizer(Optimizer optimizer, std::shared_ptr<ProcessGroup> replicas)
      : Optimizer(std::move(optimizer)), replicas_(std::move(replicas)) {}

  // Nobody reads the parameters while they change: all come here before, and
  // leave after.
  at::Tensor step(
      torch::optim::Optimizer::LossClosure closure = nullptr) override {
    at::Tensor loss;
    replicas_->barrier({.place = "before the step"}).wait();
    if (replicas_->rank() == 0)
      loss = Optimizer::step(std::move(closure));
    else
      this->forget_scaling();
    replicas_->barrier({.place = "after the step"}).wait();
    return loss;
  }

 private:
  std::shared_ptr<ProcessGroup> replicas_;
};

}  // namespace lockstep
