// Marks a file as the checkpoint of a run, complete and in a known format: by
// two texts in it, a version and a checksum.
//
// The checksum covers the content, not the bytes, so that the file can hold it
// and it is the same in both formats: CRC-32 (zlib's) over the name, the type
// as safetensors writes it, the extents and the elements of each tensor in the
// order of names, then over key and text of each text except the checksum
// itself. See docs/formats/checkpoint.md for the bytes.
//
// Errors:  see check_seal() and CheckpointSet.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "src/checkpoint/checkpoint_manifest.h"
#include "src/checkpoint/checkpoint_set.h"
#include "src/checkpoint/tensor_archive.h"

namespace lockstep {

// The prefix of the model's tensors in a checkpoint.
inline constexpr std::string_view kModelPrefix = "model.";

// Writes version and checksum into the archive's texts. Its tensors must be
// storable(): dense and on the CPU.
void seal(TensorArchive& archive);

bool is_sealed(const SafetensorsMetadata& metadata);

// Throws InvalidArgument naming `file` unless the seal matches the archive;
// NewerCheckpoint for a later format.
void check_seal(const TensorArchive& archive, const std::string& file);

// Writes a checksum alone: that of a trained model, which is no checkpoint.
void add_checksum(TensorArchive& archive);

// Reads a model, or a run's checkpoint, whose checksums must be right where
// they have one. Of a set it reads only the model, under the names of a
// checkpoint.
TensorArchive read_model_archive(const std::filesystem::path& path);
TensorArchive read_model_archive(const CheckpointSet& set);

// The model's tensors in a file, under the model's own names: without the
// prefix of a run's checkpoint, and without those of wrappers, `module.` and
// `_orig_mod.`, unless a name in `ours`, the module's tensors, has that prefix.
NamedTensors model_tensors(const TensorArchive& file,
                           const NamedTensors& ours = {});

}  // namespace lockstep
