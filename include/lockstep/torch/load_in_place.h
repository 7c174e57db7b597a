// torch::load() into a module's present memory. LibTorch's version gives
// parameters and buffers new memory, but replicas share the old memory, peers
// map it and averages lie in it.
//
// Threads: the thread of the module's passes, between two passes.
// Errors:  InvalidArgument where a tensor of the archive has another shape or
//          type, and those of Module::load(); they leave the module unchanged.
#pragma once

#include <torch/nn/module.h>
#include <torch/serialize/input-archive.h>

namespace lockstep {

void load_in_place(torch::serialize::InputArchive& archive,
                   torch::nn::Module& module);

}  // namespace lockstep
