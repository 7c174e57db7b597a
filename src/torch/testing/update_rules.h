// Update rules for the tests of sharded optimizers, and the results of
// optimizers that are not sharded.
#pragma once

#include <memory>
#include <vector>

#include "lockstep/torch/optimizers.h"
#include "src/torch/testing/formula_parameters.h"

namespace lockstep {

using Rule = std::shared_ptr<const torch::optim::OptimizerOptions>;
struct NamedRule {
  const char* name;
  Rule options;
};

inline const std::vector<NamedRule>& rules() {
  static const std::vector<NamedRule> rules{
      {"SGD", std::make_shared<torch::optim::SGDOptions>(0.05)},
      {"SGDWithMomentum",
       std::make_shared<torch::optim::SGDOptions>(
           torch::optim::SGDOptions(0.05).momentum(0.9).weight_decay(0.01))},
      {"Adam", std::make_shared<torch::optim::AdamOptions>(0.01)},
      {"AdamW", std::make_shared<torch::optim::AdamWOptions>(0.01)}};
  return rules;
}

inline std::unique_ptr<torch::optim::Optimizer> make_unsharded(
    const std::vector<at::Tensor>& parameters,
    const torch::optim::OptimizerOptions& rule) {
  if (const auto* sgd = dynamic_cast<const torch::optim::SGDOptions*>(&rule))
    return std::make_unique<FusedSGD>(parameters, *sgd);
  if (const auto* adam = dynamic_cast<const torch::optim::AdamOptions*>(&rule))
    return std::make_unique<FusedAdam>(parameters, *adam);
  return std::make_unique<FusedAdamW>(
      parameters, dynamic_cast<const torch::optim::AdamWOptions&>(rule));
}

inline std::vector<at::Tensor> learn_unsharded(
    const torch::optim::OptimizerOptions& rule, int steps) {
  auto parameters = formula_parameters();
  train_by_formula(*make_unsharded(parameters, rule), 1, steps);
  return parameters;
}

}  // namespace lockstep
