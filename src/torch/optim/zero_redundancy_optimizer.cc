#include "lockstep/torch/zero_redundancy_optimizer.h"

#include <c10/core/GradMode.h>

#include <memory>
#include <utility>

#include "src/torch/optim/optimizer_shares.h"

namespace lockstep {
namespace {

using Groups = std::vector<torch::optim::OptimizerParamGroup>;

}  // namespace

ZeroRedundancyOptimizer::ZeroRedundancyOptimizer(
    std::vector<at::Tensor> parameters,
    const torch::optim::OptimizerOptions& rule,
    const ZeroRedundancyOptimizerOptions& options)
    : ZeroRedundancyOptimizer(
          Groups{torch::optim::OptimizerParamGroup(std::move(parameters))},
          rule, options) {}

ZeroRedundancyOptimizer::ZeroRedundancyOptimizer(
    const Groups& groups, const torch::optim::OptimizerOptions& defaults,
    const ZeroRedundancyOptimizerOptions& options)
    : Optimizer(groups, defaults.clone()),
      shares_(std::make_unique<Shares>(param_groups(), options)) {}

ZeroRedundancyOptimizer::~ZeroRedundancyOptimizer() = default;

ZeroRedundancyOptimizer::ZeroRedundancyOptimizer(
    ZeroRedundancyOptimizer&&) noexcept = default;

void ZeroRedundancyOptimizer::add_param_group(
    const torch::optim::OptimizerParamGroup& group) {
  shares_->check_accepts_groups();
  Optimizer::add_param_group(group);
  try {
    shares_->add_parameters(param_groups());
  } catch (...) {
    param_groups().pop_back();
    throw;
  }
  shares_->follow_parameters();
}

std::shared_ptr<CommHook> ZeroRedundancyOptimizer::gradient_hook() const {
  return shares_->gradient_hook();
}

at::Tensor ZeroRedundancyOptimizer::step(LossClosure closure) {
  at::Tensor loss;
  if (closure) {
    const c10::AutoGradMode with_grad(true);
    loss = closure();
  }
  const c10::AutoGradMode no_grad(false);
  shares_->step(param_groups());
  return loss;
}

void ZeroRedundancyOptimizer::zero_grad(bool set_to_none) {
  Optimizer::zero_grad(set_to_none);
  forget_scaling();
}

void ZeroRedundancyOptimizer::scale_gradients(double factor) {
  shares_->factor().scale(factor, shares_->tensors());
}

double ZeroRedundancyOptimizer::take_scaling() {
  return shares_->factor().take(shares_->tensors());
}

void ZeroRedundancyOptimizer::forget_scaling() { shares_->factor().forget(); }

std::size_t ZeroRedundancyOptimizer::state_bytes() const {
  return shares_->shard().state_bytes();
}

const OptimizerShard& ZeroRedundancyOptimizer::shard() const {
  return shares_->shard();
}

double ZeroRedundancyOptimizer::clip_grad_norm(double max_norm,
                                               double norm_type) {
  return shares_->clip_grad_norm(max_norm, norm_type);
}

}  // namespace lockstep
