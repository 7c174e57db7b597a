// The optimizers of `lockstep train`, by name: fused ones, local or distributed
// over the ranks of a group.
//
// Threads: an optimizer belongs to one thread at a time. With a group, every
//          rank makes it, steps and clips at the same point of the program.
// Errors:  InvalidArgument for an unknown name (with the known ones) and for
//          numbers out of range.
#pragma once

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "apps/options/training_options.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/torch/comm_hooks.h"
#include "lockstep/torch/horovod.h"

namespace lockstep {

// How the gradients of a sharded optimizer become averages.
enum class ShardedGradients {
  kAveragedInStep,  // only by step()
  // In backward(), only each rank's share: by ClippingOptimizer::gradient_hook.
  kReducedToOwners,
  // Whole, before step(), by other code. Clipping gives the same bits on any
  // number of ranks.
  kAveragedBefore,
};

// The ranks that share an optimizer's work: at most one of the groups is set.
// Without any, each rank makes whole steps, on averaged gradients.
struct OptimizerRanks {
  // The ranks that share state and work.
  std::shared_ptr<ProcessGroup> sharded_over{};
  ShardedGradients sharded_gradients = ShardedGradients::kAveragedInStep;
  // The ranks whose gradients a DistributedOptimizer averages in the last
  // backward pass of a step; `named_parameters` are the model's. `compression`
  // is the type in which gradients are sent.
  std::shared_ptr<ProcessGroup> distributed_over{};
  torch::OrderedDict<std::string, at::Tensor> named_parameters{};
  horovod::Compression compression = horovod::Compression::kNone;
  // For a CentralOptimizer: the replicas of this process that share the
  // parameters.
  std::shared_ptr<ProcessGroup> central_in{};
};

struct ClippingOptimizer {
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  // Scales the gradients of the next step() to a global norm of at most
  // `max_norm`; returns the norm before.
  std::function<double(double max_norm)> clip_grad_norm;
  // Drops gradients and the optimizer's factors of them. (LibTorch's function
  // of this name is not virtual.)
  std::function<void()> zero_grad;
  // Completes the reduction of .grad, where there may have been too few passes;
  // may be empty.
  std::function<void()> synchronize{};
  // The hook that reduces the model's gradients in backward(); may be empty.
  std::shared_ptr<CommHook> gradient_hook{};
};

// The optimizer of `options`, with its numbers. Weight decay is L2:
// weight_decay x weight is added to gradients.
ClippingOptimizer make_optimizer(const TrainerOptions& options,
                                 const std::vector<at::Tensor>& parameters,
                                 const OptimizerRanks& ranks = {});

// For all parameters, from the next step on.
void set_learning_rate(torch::optim::Optimizer& optimizer, double rate);

}  // namespace lockstep
