#include "src/train/trainer/optimizers.h"

#include <array>
#include <cmath>
#include <string>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/torch/clip_gradients.h"
#include "lockstep/torch/distributed_optimizer.h"
#include "lockstep/torch/fused_optimizer.h"
#include "lockstep/torch/zero_redundancy_optimizer.h"
#include "src/base/suggest.h"
#include "src/torch/optim/gradient_norm.h"
#include "src/train/trainer/central_optimizer.h"

namespace lockstep {
namespace {

constexpr std::array<std::string_view, 2> kOptimizers{"sgd", "adam"};

void validate(const OptimizerOptions& options) {
  const auto require = [](bool fits, const char* name, double value) {
    if (!fits)
      throw InvalidArgument(std::string("the optimizer's ") + name +
                            " cannot be " + std::to_string(value));
  };
  const double rate = options.learning_rate;
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
                          const OptimizerOptions& options) {
  const ShardedGradients gradients = options.sharded_gradients;
  auto optimizer = std::make_unique<ZeroRedundancyOptimizer>(
      parameters, rule,
      ZeroRedundancyOptimizerOptions{
          .group = options.sharded_over,
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
ClippingOptimizer distributed(Whole whole, const OptimizerOptions& options) {
  using Distributed = DistributedOptimizer<Whole>;
  auto optimizer = std::make_unique<Distributed>(
      std::move(whole), options.named_parameters,
      DistributedOptimizerOptions{
          .group = options.distributed_over,
          .compression = options.compression,
          .backward_passes_per_step = options.passes_per_step});
  Distributed& alias = *optimizer;
  ClippingOptimizer made = clipping(std::move(optimizer));
  made.synchronize = [&alias] { alias.synchronize(); };
  return made;
}

template <class Whole, class Rule>
ClippingOptimizer make(const std::vector<at::Tensor>& parameters,
                       const Rule& rule, const OptimizerOptions& options) {
  if (options.distributed_over)
    return distributed(Whole(parameters, rule), options);
  if (options.central_in)
    return clipping(std::make_unique<CentralOptimizer<Whole>>(
        Whole(parameters, rule), options.central_in));
  if (!options.sharded_over)
    return clipping(std::make_unique<Whole>(parameters, rule));
  return sharded(parameters, rule, options);
}

}  // namespace

std::span<const std::string_view> known_optimizers() { return kOptimizers; }

ClippingOptimizer make_optimizer(std::string_view name,
                                 const std::vector<at::Tensor>& parameters,
                                 const OptimizerOptions& options) {
  validate(options);
  if (name == "sgd")
    return make<FusedSGD>(parameters,
                          torch::optim::SGDOptions(options.learning_rate)
                              .momentum(options.momentum)
                              .weight_decay(options.weight_decay),
                          options);
  if (name == "adam")
    return make<FusedAdam>(parameters,
                           torch::optim::AdamOptions(options.learning_rate)
                               .weight_decay(options.weight_decay),
                           options);
  throw InvalidArgument(unknown_name("optimizer", name, kOptimizers));
}

void set_learning_rate(torch::optim::Optimizer& optimizer, double rate) {
  for (auto& group : optimizer.param_groups()) group.options().set_lr(rate);
}

}  // namespace lockstep
