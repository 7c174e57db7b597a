#include "apps/trainer/loop/optimizers.h"

#include <cmath>
#include <string>
#include <utility>

#include "apps/trainer/loop/central_optimizer.h"
#include "lockstep/base/error.h"
#include "lockstep/torch/horovod.h"
#include "lockstep/torch/optimizers.h"
#include "lockstep/torch/zero_redundancy_optimizer.h"
#include "src/torch/optim/gradient_norm.h"

namespace lockstep {
namespace {

void validate(const TrainerOptions& options) {
  const auto require = [](bool fits, const char* name, double value) {
    if (!fits)
      throw InvalidArgument(std::string("the optimizer's ") + name +
                            " cannot be " + std::to_string(value));
  };
  const double rate = learning_rate_of(options);
  const double momentum = options.momentum;
  const double decay = options.weight_decay;
  require(rate > 0 && std::isfinite(rate), "learning rate", rate);
  require(momentum >= 0 && momentum < 1, "momentum", momentum);
  require(decay >= 0 && std::isfinite(decay), "weight decay", decay);
}

template <class Optimizer>
ClippingOptimizer clipping(std::unique_ptr<Optimizer> optimizer) {
  Optimizer& alias = *optimizer;
  return {std::move(optimizer),
          [&alias](double max_norm) { return alias.clip_grad_norm(max_norm); },
          [&alias] { alias.zero_grad(); }};
}

// Each rank computes the norm of all gradients, not of its share: a sum over
// shares would depend on their number.
ClippingOptimizer clipping_alone(
    std::unique_ptr<ZeroRedundancyOptimizer> optimizer,
    const std::vector<at::Tensor>& parameters) {
  ZeroRedundancyOptimizer& alias = *optimizer;
  return {std::move(optimizer),
          [&alias, parameters](double max_norm) {
            const double norm = grad_norm(parameters);
            alias.scale_gradients(clip_coefficient(norm, max_norm));
            return norm;
          },
          [&alias] { alias.zero_grad(); }};
}

ClippingOptimizer sharded(const std::vector<at::Tensor>& parameters,
                          const torch::optim::OptimizerOptions& rule,
                          const OptimizerRanks& ranks) {
  const ShardedGradients gradients = ranks.sharded_gradients;
  auto optimizer = std::make_unique<ZeroRedundancyOptimizer>(
      parameters, rule,
      ZeroRedundancyOptimizerOptions{
          .group = ranks.sharded_over,
          .averages_gradients =
              gradients == ShardedGradients::kAveragedInStep});
  if (gradients == ShardedGradients::kAveragedBefore)
    return clipping_alone(std::move(optimizer), parameters);
  std::shared_ptr<CommHook> hook;
  if (gradients == ShardedGradients::kReducedToOwners)
    hook = optimizer->gradient_hook();
  ClippingOptimizer made = clipping(std::move(optimizer));
  made.gradient_hook = std::move(hook);
  return made;
}

template <class Whole>
ClippingOptimizer distributed(Whole whole, const OptimizerRanks& ranks,
                              int passes_per_step) {
  using Distributed = horovod::DistributedOptimizer<Whole>;
  auto optimizer = std::make_unique<Distributed>(
      std::move(whole), ranks.named_parameters,
      horovod::DistributedOptimizerOptions{
          .group = ranks.distributed_over,
          .compression = ranks.compression,
          .backward_passes_per_step = passes_per_step});
  Distributed& alias = *optimizer;
  ClippingOptimizer made = clipping(std::move(optimizer));
  made.synchronize = [&alias] { alias.synchronize(); };
  return made;
}

template <class Whole, class Rule>
ClippingOptimizer make(const std::vector<at::Tensor>& parameters,
                       const Rule& rule, const OptimizerRanks& ranks,
                       int passes_per_step) {
  if (ranks.distributed_over)
    return distributed(Whole(parameters, rule), ranks, passes_per_step);
  if (ranks.central_in)
    return clipping(std::make_unique<CentralOptimizer<Whole>>(
        Whole(parameters, rule), ranks.central_in));
  if (!ranks.sharded_over)
    return clipping(std::make_unique<Whole>(parameters, rule));
  return sharded(parameters, rule, ranks);
}

}  // namespace

ClippingOptimizer make_optimizer(const TrainerOptions& options,
                                 const std::vector<at::Tensor>& parameters,
                                 const OptimizerRanks& ranks) {
  const OptimizerName name = parse_optimizer(options.optimizer);
  validate(options);
  const double rate = learning_rate_of(options);
  switch (name) {
    case OptimizerName::kSgd:
      return make<FusedSGD>(parameters,
                            torch::optim::SGDOptions(rate)
                                .momentum(options.momentum)
                                .weight_decay(options.weight_decay),
                            ranks, options.accumulate);
    case OptimizerName::kAdam:
      return make<FusedAdam>(
          parameters,
          torch::optim::AdamOptions(rate).weight_decay(options.weight_decay),
          ranks, options.accumulate);
  }
  throw InternalError("an optimizer that was listed cannot be made");
}

void set_learning_rate(torch::optim::Optimizer& optimizer, double rate) {
  for (auto& group : optimizer.param_groups()) group.options().set_lr(rate);
}

}  // namespace lockstep
