// Saves the parameters and buffers of a LibTorch module to a file and loads
// them back, by name. For all of a run see train/checkpoint_folder.h.
//
// Python reads a safetensors file: `safetensors.torch.load_file(path)` gives
// what `model.load_state_dict` takes. docs/formats/checkpoint.md says what is
// in it.
//
// Threads: the module must not be trained meanwhile.
// Errors:  InvalidArgument naming file and tensor when a file does not fit the
//          module, and naming the file for a run's checkpoint whose checksum is
//          wrong; see also train/tensor_archive.h. A module is changed either
//          completely or not at all.
#pragma once

#include <torch/nn/module.h>

#include <filesystem>

#include "lockstep/train/tensor_archive.h"

namespace lockstep {

// Replaces the file at `path` by what `module` holds now; tensors of any device
// and layout are stored as dense rows. All or nothing: see train/atomic_file.h.
void save_checkpoint(const std::filesystem::path& path,
                     const torch::nn::Module& module,
                     const SafetensorsMetadata& metadata = {},
                     CheckpointFormat format = CheckpointFormat::kSafetensors);

// Copies the file's tensors over those of `module`, where each keeps its device
// and its place in memory. Both must have the same names, shapes and types; the
// file's may all have `module.` in front, as PyTorch names those of a wrapped
// model. Of a run's checkpoint the model is taken. The file may be of either
// format. Returns its metadata.
SafetensorsMetadata load_checkpoint(const std::filesystem::path& path,
                                    torch::nn::Module& module);

// The tensors of a file that are a model's, under the names that these have in
// it: without what is before them in a run's checkpoint, and, but where some of
// `ours`, those of the module, begin like that, without a wrapper's `module.`.
NamedTensors model_tensors(const TensorArchive& file,
                           const NamedTensors& ours = {});

}  // namespace lockstep
