#include "lockstep/torch/strategy_optimizer.h"

namespace lockstep {

// Nobody reads the variables while they change: all come here before, and leave
// after.
void StrategyOptimizer::step() {
  if (shared_) shared_->barrier({.place = "before the step"}).wait();
  if (optimizer_) optimizer_->step();
  if (shared_) shared_->barrier({.place = "after the step"}).wait();
}

void StrategyOptimizer::zero_grad() {
  for (const at::Tensor& parameter : parameters_)
    parameter.mutable_grad().reset();
}

}  // namespace lockstep
