// An optimizer of parameters that the replicas of a process share: each replica
// has one, and the first replica's makes the steps.
//
// `Optimizer` is one of optimizers.h's. The others keep no state; their
// learning rates and clipping may be set like the first one's, and have no
// effect.
//
// Threads: an object belongs to its replica's thread. Every replica steps at
//          the same point of the program.
// Errors:  those of the optimizer and of the group's operations.
// See src/torch/frontends/strategies/central_step.h.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <memory>
#include <utility>

#include "lockstep/comm/process_group.h"
#include "src/torch/frontends/strategies/central_step.h"

namespace lockstep {

template <class Optimizer>
class CentralOptimizer final : public Optimizer {
 public:
  // `replicas` share the parameters.
  CentralOptimizer(Optimizer optimizer, std::shared_ptr<ProcessGroup> replicas)
      : Optimizer(std::move(optimizer)), replicas_(std::move(replicas)) {}

  at::Tensor step(
      torch::optim::Optimizer::LossClosure closure = nullptr) override {
    at::Tensor loss;
    if (replicas_->rank() != 0) this->forget_scaling();
    step_centrally(*replicas_, this->param_groups().front().params(),
                   [&] { loss = Optimizer::step(std::move(closure)); });
    return loss;
  }

 private:
  std::shared_ptr<ProcessGroup> replicas_;
};

}  // namespace lockstep
