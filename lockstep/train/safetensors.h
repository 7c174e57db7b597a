// The safetensors file format: named tensors as they lie in memory, behind a
// JSON header (https://huggingface.co/docs/safetensors). Plain bytes on both
// sides: train/checkpoint.h joins it to LibTorch's modules. See
// docs/formats/checkpoint.md.
//
// Threads: pure functions on values; writing see train/atomic_file.h.
// Errors:  InvalidArgument naming the file, what was expected and what was
//          found for anything that is not a whole, unambiguous file of types
//          that we have; SystemError when the file cannot be read or written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/data_type.h"

namespace lockstep {

// How the format writes the type: "F32".
std::string_view safetensors_name(DataType type);

// One tensor of a file. `bytes` borrows: row-major, little-endian elements.
struct TensorBytes {
  std::string name;
  DataType type = DataType::kFloat32;
  std::vector<std::int64_t> shape;  // empty: a scalar
  std::span<const std::byte> bytes;
};

// What a header says besides the tensors: free text by name.
using SafetensorsMetadata = std::map<std::string, std::string>;

// The tensors of a file's bytes, which they borrow, in the order in which they
// lie there.
struct SafetensorsView {
  SafetensorsMetadata metadata;
  std::vector<TensorBytes> tensors;
};

// Reads the `bytes` of a whole file. `file` names it in errors.
SafetensorsView parse_safetensors(std::span<const std::byte> bytes,
                                  const std::string& file);

// The bytes of a file.
std::vector<std::byte> read_whole_file(const std::filesystem::path& path);

// A file read into memory. Moving it keeps the view valid; copying cannot.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& path);
  SafetensorsFile(SafetensorsFile&&) = default;
  SafetensorsFile& operator=(SafetensorsFile&&) = default;

  const SafetensorsView& view() const { return view_; }

 private:
  std::vector<std::byte> bytes_;
  SafetensorsView view_;
};

// Replaces the file at `path`, all or nothing. The tensors are laid out largest
// element type first, then by name, so that each is aligned and the same
// tensors give the same bytes. InvalidArgument for two tensors of one name and
// for one whose bytes do not fit its shape.
void write_safetensors(const std::filesystem::path& path,
                       std::span<const TensorBytes> tensors,
                       const SafetensorsMetadata& metadata = {});

}  // namespace lockstep
