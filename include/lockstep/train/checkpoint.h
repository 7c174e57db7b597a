// Saves the parameters and buffers of a LibTorch module to a file and loads
// them back, by name. For the whole state of a run see
// train/checkpoint/checkpoint_folder.h.
//
// Python reads a safetensors file: `safetensors.torch.load_file(path)` gives
// the argument of `model.load_state_dict`. docs/formats/checkpoint.md describes
// the file.
//
// Threads: the module must not be trained during a call. The file at a path may
//          be replaced while others read it.
// Errors:  InvalidArgument naming the file unless it is a whole file of either
//          format, naming file and tensor when the file does not fit the
//          module, naming the file for a run's checkpoint whose checksum is
//          wrong, and for tensors of types that safetensors lacks; SystemError
//          when the file cannot be read or written; LibTorch's errors where
//          memory is short. A module changes either completely or not at all.
#pragma once

#include <torch/nn/module.h>

#include <filesystem>
#include <map>
#include <memory>
#include <string>

namespace lockstep {

// Safetensors is the default: Python reads and writes it. The other is
// LibTorch's own archive, as torch::save() writes it, for programs that read
// their models with torch::load(); Python's torch.load() refuses it with
// weights_only = True, its default, and torch.jit.load() takes it. Files from
// untrusted sources should be safetensors, which holds only data; reading an
// archive runs LibTorch's loader, which trusts it. Dots in names are the levels
// of an archive, as of a module.
enum class CheckpointFormat { kSafetensors, kLibTorch };

// Replaces the file at `path` by the present tensors of `module`, from any
// device and of any layout, stored as dense rows, and by the texts `metadata`,
// by name. All or nothing: after a failure or a kill the earlier file is there.
void save_checkpoint(const std::filesystem::path& path,
                     const torch::nn::Module& module,
                     const std::map<std::string, std::string>& metadata = {},
                     CheckpointFormat format = CheckpointFormat::kSafetensors);

// Copies the file's tensors over those of `module`, where each keeps its device
// and its place in memory. Both must have the same names, shapes and types; all
// names in the file may have the prefix `module.`, as PyTorch names those of a
// wrapped model. From a run's checkpoint it takes the model. The file may have
// either format, but LibTorch's only where its name does not end in
// .safetensors. Returns its metadata.
std::map<std::string, std::string> load_checkpoint(
    const std::filesystem::path& path, torch::nn::Module& module);

// Parameters and buffers of `module` and of all its submodules, copied to
// separate memory on the CPU under the same names, to save or send while
// training of the module continues: save_checkpoint() and torch::save() write
// the same for it as for the module, and training does not change it. Like all
// of LibTorch's memory, the copy lies in the heap that ranks share, if there is
// one. A tensor with two names, such as tied weights, is copied once. The copy
// is not a module of the same class, and cannot compute.
std::shared_ptr<torch::nn::Module> module_cpu_copy(
    const torch::nn::Module& module);

}  // namespace lockstep
