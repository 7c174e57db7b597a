// The tensors of a module: their loading in place, and
// lists of parameters in which one that is registered under several names, as
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
#include <torch/serialize/input-archive.h>

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

// torch::load() into a module's present memory. LibTorch's version gives
// parameters and buffers new memory, but replicas share the old memory, peers
// map it and averages lie in it. Threads: the thread of the module's passes,
// between two passes. InvalidArgument where a tensor of the archive has another
// shape or type, and the errors of Module::load(), leave the module unchanged.
void load_in_place(torch::serialize::InputArchive& archive,
                   torch::nn::Module& module);

}  // namespace lockstep
