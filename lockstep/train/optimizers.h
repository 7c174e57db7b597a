// LibTorch's optimizers, by name.
//
// Threads: an optimizer belongs to one thread at a time.
// Errors:  InvalidArgument for an unknown name (with the known ones) and for
//          numbers out of range.
#pragma once

#include <torch/optim/optimizer.h>

#include <memory>
#include <span>
#include <string_view>
#include <vector>

namespace lockstep {

struct OptimizerOptions {
  double learning_rate = 0.05;
  double momentum = 0.9;    // sgd only
  double weight_decay = 0;  // L2: weight_decay x weight is added to gradients
};

// The names that make_optimizer() takes: "sgd", "adam".
std::span<const std::string_view> known_optimizers();

std::unique_ptr<torch::optim::Optimizer> make_optimizer(
    std::string_view name, const std::vector<at::Tensor>& parameters,
    const OptimizerOptions& options);

// For all parameters, from the next step on.
void set_learning_rate(torch::optim::Optimizer& optimizer, double rate);

}  // namespace lockstep
