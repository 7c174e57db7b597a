// A copy of a module's tensors, to save or send while training of the module
// continues.
//
// Threads: the module must not be trained during the call.
// Errors:  LibTorch's errors where memory is short.
#pragma once

#include <torch/nn/module.h>

#include <memory>

namespace lockstep {

// Parameters and buffers of `module` and of all its submodules, copied to
// separate memory on the CPU under the same names: save_checkpoint() and
// torch::save() write the same for it as for the module, and training does not
// change it. Like all of LibTorch's memory, the copy lies in the heap that
// ranks share, if there is one. A tensor with two names, such as tied weights,
// is copied once. The copy is not a module of the same class, and cannot
// compute.
std::shared_ptr<torch::nn::Module> module_cpu_copy(
    const torch::nn::Module& module);

}  // namespace lockstep
