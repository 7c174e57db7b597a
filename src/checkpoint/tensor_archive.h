// A file of named tensors and texts, in either CheckpointFormat. See
// lockstep/checkpoint/checkpoint.h and docs/formats/checkpoint.md.
//
// Threads: for writing see src/checkpoint/atomic_file.h.
// Errors:  InvalidArgument naming the file unless it is a whole file of either
//          format, and for tensors of types that safetensors lacks; SystemError
//          when the file cannot be read or written.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/buffer.h"
#include "lockstep/checkpoint/checkpoint.h"
#include "src/checkpoint/named_tensors.h"
#include "src/checkpoint/safetensors.h"

namespace lockstep {

// The file name extension of the format: ".safetensors", ".pt"; none of a
// folder of shards.
std::string_view ending_of(CheckpointFormat format);

struct TensorArchive {
  NamedTensors tensors{};
  SafetensorsMetadata metadata{};
};

using SharedBytes = std::shared_ptr<const std::vector<std::byte>>;

SharedBytes read_bytes(const std::filesystem::path& path);

// Reads the bytes of a whole file, and recognises its format, but refuses
// LibTorch's archive where `file`, the name for errors, ends in .safetensors.
// The tensors may share `bytes`, which they keep alive: the caller must not
// write to them.
TensorArchive parse_archive(const SharedBytes& bytes, const std::string& file);

// The bytes of a safetensors file.
Bytes to_bytes(const TensorArchive& archive);

// Replaces the file at `path`, all or nothing. InvalidArgument, before it
// writes, for what parse_archive() would refuse, such as a name that LibTorch's
// format cannot hold.
void write_archive(const std::filesystem::path& path,
                   const TensorArchive& archive,
                   CheckpointFormat format = CheckpointFormat::kSafetensors);

}  // namespace lockstep
