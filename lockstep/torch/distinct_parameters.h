// Parameters of which one that is registered under several names, as tied
// weights are, counts once, under the first: as in PyTorch. LibTorch's own
// Module::parameters() has it as often as it has names, and LibTorch's own
// optimizers then make as many steps with it.
//
// The first time in a process that a parameter is there twice, a line of the
// log says so, at level warn.
//
// Threads: every function may be called from any thread.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>
#include <torch/ordered_dict.h>

#include <string>
#include <vector>

namespace lockstep {

std::vector<at::Tensor> distinct_parameters(const torch::nn::Module& module);

torch::OrderedDict<std::string, at::Tensor> distinct_named_parameters(
    const torch::nn::Module& module);

// Whether an optimizer of these groups has a parameter more than once, which
// is logged.
bool has_repeated_parameters(
    const std::vector<torch::optim::OptimizerParamGroup>& groups);

// Leaves each parameter in the first place that `optimizer` has it in.
void drop_repeated_parameters(torch::optim::Optimizer& optimizer);

}  // namespace lockstep
