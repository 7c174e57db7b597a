// A copy of a module's tensors, to be saved or sent while the module itself is
// trained on.
//
// Threads: the module must not be trained during the call.
// Errors:  what LibTorch throws where memory is short.
#pragma once

#include <torch/nn/module.h>

#include <memory>

namespace lockstep {

// Parameters and buffers of `module` and of all modules in it, copied to memory
// of their own on the CPU under the same names: save_checkpoint() and
// torch::save() write of it what they write of the module, and no step of the
// training changes it. As all of LibTorch's memory that of the copy is in the
// heap that ranks share, where there is one. A tensor that has two names, as
// tied weights have, is copied once. The copy is no module of the same class,
// and cannot compute.
std::shared_ptr<torch::nn::Module> module_cpu_copy(
    const torch::nn::Module& module);

}  // namespace lockstep
