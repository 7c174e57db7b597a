// An optimizer's state and options as named tensors, and back.
//
// LibTorch's SGD, Adam, AdamW, Adagrad and RMSprop, and the fused and sharded
// ones, have one tensor per item of state: `state.fc1.weight.exp_avg`,
// `group.0.lr` (numbers are scalars, float64 or int64). Any other optimizer is
// stored as LibTorch's archive, as bytes, under `archive`.
//
// Threads: like the optimizer. consolidate_if_sharded() is a collective, the
//          rest is local.
// Errors:  InvalidArgument when stored state does not fit the optimizer, which
//          is then unchanged; those of an optimizer of an unknown kind, in the
//          state in which it stopped.
#pragma once

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <functional>
#include <string>
#include <vector>

#include "lockstep/torch/zero_redundancy_optimizer.h"
#include "src/checkpoint/named_tensors.h"
#include "src/checkpoint/state_pieces.h"

namespace lockstep {

struct OptimizerTensors {
  // "sgd", "adam", "adamw", "adagrad", "rmsprop" or "archive".
  std::string kind{};
  NamedTensors tensors{};
  // Whether an optimizer may keep a tensor instead of a copy.
  bool may_keep = false;
};

// Gathers the state of a sharded optimizer on rank 0; every rank calls it.
void consolidate_if_sharded(torch::optim::Optimizer& optimizer);

// Tensors are shared with the optimizer, not copied. `module` names the
// parameters; a parameter that it does not have is named by its position. A
// sharded optimizer must be consolidated.
OptimizerTensors tensors_of(const torch::optim::Optimizer& optimizer,
                            const torch::nn::Module& module);

// Checks the stored state against the optimizer, and copies each tensor to its
// parameter's device. The returned function replaces the optimizer's state and
// options by the copies; call it once, while the optimizer lives. Only an
// optimizer of an unknown kind can refuse them then.
std::function<void()> prepare_optimizer(const OptimizerTensors& stored,
                                        const torch::nn::Module& module,
                                        torch::optim::Optimizer& optimizer);

// The rank's own part of a sharded optimizer: its options, which all ranks
// have, and the state of its pieces, flat.
struct ShardTensors {
  OptimizerTensors options{};
  std::vector<StatePiece> pieces{};
};
ShardTensors shard_of(const ZeroRedundancyOptimizer& optimizer,
                      const torch::nn::Module& module);

// As prepare_optimizer(), from the set's tensors whose names begin with
// `prefix`; reads only the pieces of this rank.
std::function<void()> prepare_shard(const std::string& kind,
                                    const CheckpointSet& set,
                                    const std::string& prefix,
                                    const torch::nn::Module& module,
                                    ZeroRedundancyOptimizer& optimizer);

// Both steps: replaces the optimizer's state and options by copies of `stored`.
void load_optimizer(const OptimizerTensors& stored,
                    const torch::nn::Module& module,
                    torch::optim::Optimizer& optimizer);

}  // namespace lockstep
