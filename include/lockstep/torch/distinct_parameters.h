// Lists of parameters in which one that is registered under several names, as
// tied weights are, counts once, under the first name, as in PyTorch.
// LibTorch's own Module::parameters() lists it once per name, and LibTorch's
// own optimizers then make one step per name with it.
//
// The first time in a process that a parameter is listed twice, the log gets a
// line at level warn.
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

// Whether an optimizer of these groups has a parameter more than once; logs it.
bool has_repeated_parameters(
    const std::vector<torch::optim::OptimizerParamGroup>& groups);

// Removes repeated parameters from `optimizer`; each stays in its first place.
void drop_repeated_parameters(torch::optim::Optimizer& optimizer);

}  // namespace lockstep
