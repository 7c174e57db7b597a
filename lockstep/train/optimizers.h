// The optimizers of `lockstep train`, by name: fused ones, as they are or with
// a part in what the ranks of a group do together.
//
// Threads: an optimizer belongs to one thread at a time. Where there is a
//          group, every rank of it makes it, steps and clips at the same point
//          of the program.
// Errors:  InvalidArgument for an unknown name (with the known ones) and for
//          numbers out of range.
#pragma once

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/torch/comm_hook.h"
#include "lockstep/torch/distributed_optimizer.h"

namespace lockstep {

// How the gradients of a sharded optimizer become averages.
enum class ShardedGradients {
  kAveragedInStep,  // by step(), and nobody else
  // In backward(), each rank's share alone: by
  // ClippingOptimizer::gradient_hook.
  kReducedToOwners,
  // Whole, by somebody else. Clipping gives the same bits on any number of
  // ranks.
  kAveragedBefore,
};

struct OptimizerOptions {
  double learning_rate = 0.05;
  double momentum = 0.9;    // sgd only
  double weight_decay = 0;  // L2: weight_decay x weight is added to gradients
  // The ranks that share state and work. Empty: each rank does all for itself,
  // on gradients that are averaged already.
  std::shared_ptr<ProcessGroup> sharded_over{};
  ShardedGradients sharded_gradients = ShardedGradients::kAveragedInStep;
  // The ranks whose gradients a DistributedOptimizer averages in the last of
  // `passes_per_step` backward passes, if any; `named_parameters` are those of
  // the model. `compression` says what travels.
  std::shared_ptr<ProcessGroup> distributed_over{};
  torch::OrderedDict<std::string, at::Tensor> named_parameters{};
  int passes_per_step = 1;
  Compression compression = Compression::kNone;
  // The replicas of this process that share the parameters, if they do: a
  // CentralOptimizer's. At most one of the three groups is given.
  std::shared_ptr<ProcessGroup> central_in{};
};

struct ClippingOptimizer {
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  // Lets the next step() take gradients whose norm, of all together, is at most
  // the argument; returns what it was.
  std::function<double(double max_norm)> clip_grad_norm;
  // Drops gradients, and what the optimizer knows of them. (LibTorch's function
  // of this name is not virtual.)
  std::function<void()> zero_grad;
  // Makes .grad what step() reads, where passes may have been too few for it;
  // may be empty.
  std::function<void()> synchronize{};
  // What the model's gradients are to be reduced by in backward(); may be
  // empty.
  std::shared_ptr<CommHook> gradient_hook{};
};

// The names that make_optimizer() takes: "sgd", "adam".
std::span<const std::string_view> known_optimizers();

ClippingOptimizer make_optimizer(std::string_view name,
                                 const std::vector<at::Tensor>& parameters,
                                 const OptimizerOptions& options);

// For all parameters, from the next step on.
void set_learning_rate(torch::optim::Optimizer& optimizer, double rate);

}  // namespace lockstep
