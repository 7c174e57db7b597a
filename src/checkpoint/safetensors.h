// The safetensors file format: named tensors as raw memory, behind a JSON
// header (https://huggingface.co/docs/safetensors). It handles plain bytes:
// lockstep/checkpoint/checkpoint.h connects it to LibTorch's modules. See
// docs/formats/checkpoint.md.
//
// Threads: for writing see src/checkpoint/atomic_file.h.
// Errors:  InvalidArgument naming the file, what was expected and what was
//          found, unless it is a whole, unambiguous file of those types;
//          SystemError when the file cannot be read or written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/checkpoint/atomic_file.h"

namespace lockstep {

// The types of the format whose elements are whole bytes.
enum class SafetensorsType {
  kF64,
  kF32,
  kF16,
  kBF16,
  kF8E4M3,
  kF8E5M2,
  kF8E8M0,
  kC64,
  kI64,
  kI32,
  kI16,
  kI8,
  kU64,
  kU32,
  kU16,
  kU8,
  kBool,
};
inline constexpr std::size_t kSafetensorsTypes = 17;

// The format's name of the type, such as "F32", and the bytes per element.
std::string_view name_of(SafetensorsType type);
std::size_t size_of(SafetensorsType type);

// The product of `unit` and the extents, in which one of 0 counts as 1 for the
// limit: empty if an extent is negative or the product is 2^63 or more, which
// row-major strides would be.
std::optional<std::uint64_t> product_of(std::span<const std::int64_t> shape,
                                        std::int64_t unit = 1);

// One tensor of a file. `bytes` borrows: row-major, little-endian elements.
struct TensorBytes {
  std::string name;
  SafetensorsType type = SafetensorsType::kF32;
  std::vector<std::int64_t> shape;  // empty: a scalar
  std::span<const std::byte> bytes;
};

// The header's free texts, by name.
using SafetensorsMetadata = std::map<std::string, std::string>;

// What every format of checkpoints requires of a tensor's name and of texts:
// throws InvalidArgument unless they are UTF-8.
void check_name(const std::string& name);
void check_texts(const SafetensorsMetadata& metadata);

// The tensors in a file's bytes, which they borrow, in the file's order.
struct SafetensorsView {
  SafetensorsMetadata metadata;
  std::vector<TensorBytes> tensors;
};

// Where a tensor lies in a file: `begin` and `end` are offsets of bytes from
// the beginning of the file.
struct TensorPlace {
  std::string name;
  SafetensorsType type = SafetensorsType::kF32;
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

// A file without its data; the tensors are in the order of their data.
struct SafetensorsHeader {
  SafetensorsMetadata metadata;
  std::vector<TensorPlace> tensors;
};

// Reads the header of a file, which must fit the file's size; not the data.
SafetensorsHeader read_safetensors_header(const std::filesystem::path& path);

// Reads the `bytes` of a whole file. `file` names it in errors.
SafetensorsView parse_safetensors(std::span<const std::byte> bytes,
                                  const std::string& file);

// Reads a whole file.
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

// A tensor to write whose elements need not be in memory: `write` gives them to
// the sink, as TensorBytes has them.
struct TensorStream {
  std::string name;
  SafetensorsType type = SafetensorsType::kF32;
  std::vector<std::int64_t> shape;
  std::function<void(const ByteSink&)> write;
};

// Gives a file's bytes to `sink`. Tensors are sorted by element size, largest
// first, then by name, so that each is aligned and the same tensors give the
// same bytes. InvalidArgument for what the reader would refuse: two tensors of
// one name, names and texts that are not UTF-8 or too long, a shape that is too
// large, a bool other than 0 and 1, and a tensor whose bytes do not fit its
// shape.
void write_safetensors(const ByteSink& sink, std::vector<TensorStream> tensors,
                       const SafetensorsMetadata& metadata = {});

// The same into the file at `path`, which is replaced, all or nothing.
void write_safetensors(const std::filesystem::path& path,
                       std::span<const TensorBytes> tensors,
                       const SafetensorsMetadata& metadata = {});

}  // namespace lockstep
