// Saves the parameters and buffers of a LibTorch module to a file and loads
// them back, by name. For the whole state of a run see
// train/checkpoint/checkpoint_folder.h.
//
// Python reads a safetensors file: `safetensors.torch.load_file(path)` gives
// the argument of `model.load_state_dict`. docs/formats/checkpoint.md describes
// the file.
//
// Threads: the module must not be trained during a call.
// Errors:  InvalidArgument naming file and tensor when a file does not fit the
//          module, and naming the file for a run's checkpoint whose checksum is
//          wrong; see also train/checkpoint/tensor_archive.h. A module changes
//          either completely or not at all.
#pragma once

#include <torch/nn/module.h>

#include <filesystem>

#include "lockstep/train/checkpoint/tensor_archive.h"

namespace lockstep {

// Replaces the file at `path` by the present tensors of `module`, from any
// device and of any layout, stored as dense rows. All or nothing: see
// train/checkpoint/atomic_file.h.
void save_checkpoint(const std::filesystem::path& path,
                     const torch::nn::Module& module,
                     const SafetensorsMetadata& metadata = {},
                     CheckpointFormat format = CheckpointFormat::kSafetensors);

// Copies the file's tensors over those of `module`, where each keeps its device
// and its place in memory. Both must have the same names, shapes and types; all
// names in the file may have the prefix `module.`, as PyTorch names those of a
// wrapped model. From a run's checkpoint it takes the model. The file may have
// either format. Returns its metadata.
SafetensorsMetadata load_checkpoint(const std::filesystem::path& path,
                                    torch::nn::Module& module);

// The model's tensors in a file, under the model's own names: without the
// prefix of a run's checkpoint, and without a wrapper's `module.`, unless a
// name in `ours`, the module's tensors, has that prefix.
NamedTensors model_tensors(const TensorArchive& file,
                           const NamedTensors& ours = {});

}  // namespace lockstep
