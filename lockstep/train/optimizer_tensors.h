// An optimizer's state and options as named tensors, and back.
//
// LibTorch's SGD, Adam, AdamW, Adagrad and RMSprop, and the fused and sharded
// ones, have a tensor for each thing they keep: `state.fc1.weight.exp_avg`,
// `group.0.lr` (numbers are scalars, float64 or int64). Of any other optimizer
// it is LibTorch's archive of it, as bytes, under `archive`.
//
// Threads: as the optimizer. A ZeroRedundancyOptimizer is to be consolidated
//          first: consolidate_if_sharded() is a collective, the rest is local.
// Errors:  InvalidArgument when stored state does not fit the optimizer, which
//          is then as it was; what an optimizer of an unknown kind throws, and
//          leaves.
#pragma once

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <functional>
#include <string>

#include "lockstep/train/named_tensors.h"

namespace lockstep {

struct OptimizerTensors {
  // "sgd", "adam", "adamw", "adagrad", "rmsprop" or "archive".
  std::string kind{};
  NamedTensors tensors{};
};

// Gathers the state on rank 0, where the optimizer is sharded; every rank calls
// it.
void consolidate_if_sharded(torch::optim::Optimizer& optimizer);

// Tensors are shared with the optimizer, not copied. `module` names the
// parameters; one that it does not have is named by its place.
OptimizerTensors tensors_of(const torch::optim::Optimizer& optimizer,
                            const torch::nn::Module& module);

// Checks what is stored against the optimizer, and copies it: each tensor to
// where its parameter is. The call that is returned, to be made once and while
// the optimizer lives, puts the copies in the place of the optimizer's state
// and options; only an optimizer of an unknown kind can refuse them then.
std::function<void()> prepare_optimizer(const OptimizerTensors& stored,
                                        const torch::nn::Module& module,
                                        torch::optim::Optimizer& optimizer);

// Both: replaces the optimizer's state and options by copies of what is stored.
void load_optimizer(const OptimizerTensors& stored,
                    const torch::nn::Module& module,
                    torch::optim::Optimizer& optimizer);

}  // namespace lockstep
