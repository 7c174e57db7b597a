// A file of named tensors and texts, in either of two formats.
//
// Safetensors is the default: Python reads and writes it. The other is
// LibTorch's own archive, as torch::save() writes it, for programs that read
// their models with torch::load(); Python's torch.load() refuses it with
// weights_only = True, its default, and torch.jit.load() takes it.
// What comes from strangers should be safetensors, which is data alone; reading
// an archive runs LibTorch's loader, which trusts it.
// Dots in names are the levels of such an archive, as they are those of a
// module. See docs/formats/checkpoint.md.
//
// Threads: functions of their arguments; writing see train/atomic_file.h.
// Errors:  InvalidArgument naming the file for what is no whole file of either
//          format, and for tensors of types that safetensors lacks; SystemError
//          when the file cannot be read or written.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/train/named_tensors.h"
#include "lockstep/train/safetensors.h"

namespace lockstep {

enum class CheckpointFormat { kSafetensors, kLibTorch };

// The ending of such files' names: ".safetensors", ".pt".
std::string_view ending_of(CheckpointFormat format);

struct TensorArchive {
  NamedTensors tensors{};
  SafetensorsMetadata metadata{};
};

using SharedBytes = std::shared_ptr<const std::vector<std::byte>>;

SharedBytes read_bytes(const std::filesystem::path& path);

// Reads the bytes of a whole file, whose format shows; but LibTorch's archive
// is refused where `file`, which names it in errors, ends in .safetensors. The
// tensors may share `bytes`, which they keep alive: they must not be written
// to.
TensorArchive parse_archive(const SharedBytes& bytes, const std::string& file);

// Replaces the file at `path`, all or nothing.
void write_archive(const std::filesystem::path& path,
                   const TensorArchive& archive,
                   CheckpointFormat format = CheckpointFormat::kSafetensors);

}  // namespace lockstep
