// What marks a file as the checkpoint of a run, complete and of a format that
// this program knows: two texts in it, a version and a checksum.
//
// The checksum is of the content, so that it can stand in the file and is the
// same in both formats: CRC-32 (zlib's) over, for each tensor in the order of
// names, the name, its type as safetensors writes it, the extents and the
// elements, then, for each text but the checksum itself, key and text. See
// docs/formats/checkpoint.md for the bytes.
//
// Threads: functions of their arguments.
// Errors:  see check_seal().
#pragma once

#include <string>
#include <string_view>

#include "lockstep/base/error.h"
#include "lockstep/train/tensor_archive.h"

namespace lockstep {

// Under which the model's tensors are in a checkpoint.
inline constexpr std::string_view kModelPrefix = "model.";

// A checkpoint was written by a later version of the library: it may be
// complete, so that an older one must not take its place.
class NewerCheckpoint : public InvalidArgument {
 public:
  using InvalidArgument::InvalidArgument;
};

// Writes version and checksum into the archive's texts. Its tensors must be
// storable(): dense and on the CPU.
void seal(TensorArchive& archive);

bool is_sealed(const SafetensorsMetadata& metadata);

// Throws InvalidArgument naming `file` unless the archive was sealed as it is
// now; NewerCheckpoint when its format is a later one.
void check_seal(const TensorArchive& archive, const std::string& file);

}  // namespace lockstep
