#include "lockstep/train/optimizers.h"

#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>

#include <array>
#include <cmath>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/base/suggest.h"

namespace lockstep {
namespace {

constexpr std::array<std::string_view, 2> kOptimizers{"sgd", "adam"};

void validate(const OptimizerOptions& options) {
  const auto require = [](bool fits, const char* name, double value) {
    if (!fits)
      throw InvalidArgument(std::string("the optimizer's ") + name +
                            " cannot be " + std::to_string(value));
  };
  const auto [rate, momentum, decay] = options;
  require(rate > 0 && std::isfinite(rate), "learning rate", rate);
  require(momentum >= 0 && momentum < 1, "momentum", momentum);
  require(decay >= 0 && std::isfinite(decay), "weight decay", decay);
}

}  // namespace

std::span<const std::string_view> known_optimizers() { return kOptimizers; }

std::unique_ptr<torch::optim::Optimizer> make_optimizer(
    std::string_view name, const std::vector<at::Tensor>& parameters,
    const OptimizerOptions& options) {
  validate(options);
  if (name == "sgd")
    return std::make_unique<torch::optim::SGD>(
        parameters, torch::optim::SGDOptions(options.learning_rate)
                        .momentum(options.momentum)
                        .weight_decay(options.weight_decay));
  if (name == "adam")
    return std::make_unique<torch::optim::Adam>(
        parameters, torch::optim::AdamOptions(options.learning_rate)
                        .weight_decay(options.weight_decay));
  throw InvalidArgument(unknown_name("optimizer", name, kOptimizers));
}

void set_learning_rate(torch::optim::Optimizer& optimizer, double rate) {
  for (auto& group : optimizer.param_groups()) group.options().set_lr(rate);
}

}  // namespace lockstep
