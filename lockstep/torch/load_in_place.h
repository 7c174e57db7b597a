// torch::load() into the memory that a module has. LibTorch's gives parameters
// and buffers other memory, which replicas that share it, peers that map it and
// averages that lie in it would not see.
//
// Threads: that of the module's passes, between two of them.
// Errors:  InvalidArgument where a tensor of the archive has another shape or
//          type, and what Module::load() throws; the module is unchanged then.
#pragma once

#include <torch/nn/module.h>
#include <torch/serialize/input-archive.h>

namespace lockstep {

void load_in_place(torch::serialize::InputArchive& archive,
                   torch::nn::Module& module);

}  // namespace lockstep
