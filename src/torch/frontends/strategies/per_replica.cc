#include "lockstep/torch/strategies.h"
#include "src/torch/frontends/strategies/central_step.h"

namespace lockstep::strategies {

void StrategyOptimizer::step() {
  if (central_)
    step_centrally(*central_, parameters_, [&] { optimizer_->step(); });
  else
    optimizer_->step();
}

void StrategyOptimizer::zero_grad() {
  for (const at::Tensor& parameter : parameters_)
    parameter.mutable_grad().reset();
}

}  // namespace lockstep::strategies
