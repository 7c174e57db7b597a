#include "src/checkpoint/tensor_archive.h"

#include <ATen/ATen.h>
#include <caffe2/serialize/inline_container.h>
#include <caffe2/serialize/read_adapter_interface.h>
#include <torch/serialize/archive.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "lockstep/base/error.h"
#include "src/base/first_line.h"
#include "src/base/printable.h"
#include "src/checkpoint/atomic_file.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using torch::serialize::InputArchive;
using torch::serialize::OutputArchive;

// The key in LibTorch's archive of the texts, as one JSON text.
constexpr const char* kTextsKey = "__metadata__";

std::span<const std::byte> bytes_of(const at::Tensor& dense) {
  return {static_cast<const std::byte*>(dense.const_data_ptr()),
          dense.nbytes()};
}

void write_as_safetensors(const ByteSink& sink, const TensorArchive& archive) {
  std::vector<TensorStream> streams;
  for (const auto& [name, tensor] : archive.tensors) {
    const at::Tensor dense = storable(name, tensor);
    streams.push_back({name, stored_type_of(dense.scalar_type()),
                       dense.sizes().vec(),
                       [dense](const ByteSink& to) { to(bytes_of(dense)); }});
  }
  write_safetensors(sink, std::move(streams), archive.metadata);
}

TensorArchive parse_as_safetensors(const SharedBytes& bytes,
                                   const std::string& file) {
  SafetensorsView view = parse_safetensors(*bytes, file);
  TensorArchive archive{.metadata = std::move(view.metadata)};
  for (const TensorBytes& tensor : view.tensors)
    archive.tensors.emplace(
        tensor.name,
        at::from_blob(
            const_cast<std::byte*>(tensor.bytes.data()), tensor.shape,
            [bytes](void*) {}, at::TensorOptions(scalar_type_of(tensor.type))));
  return archive;
}

// Writes one level of an archive: a name without a dot is a tensor; otherwise
// the part before its first dot is a level of its own.
void write_level(OutputArchive& level, const NamedTensors& tensors) {
  std::map<std::string, NamedTensors> below;
  for (const auto& [name, tensor] : tensors) {
    const std::size_t dot = name.find('.');
    if (dot == std::string::npos)
      level.write(name, tensor, /*is_buffer=*/!tensor.is_floating_point());
    else
      below[name.substr(0, dot)].emplace(name.substr(dot + 1), tensor);
  }
  for (const auto& [name, part] : below) {
    OutputArchive nested(level.compilation_unit());
    write_level(nested, part);
    level.write(name, nested);
  }
}

std::vector<std::byte> archive_of(const NamedTensors& dense,
                                  const SafetensorsMetadata& metadata) {
  OutputArchive output;
  write_level(output, dense);
  output.write(kTextsKey, c10::IValue(nlohmann::json(metadata).dump()));
  std::vector<std::byte> bytes;
  output.save_to([&](const void* from, std::size_t count) {
    const auto* begin = static_cast<const std::byte*>(from);
    bytes.insert(bytes.end(), begin, begin + count);
    return count;
  });
  return bytes;
}

// Whether it begins like a zip file, as LibTorch's archives do.
bool is_archive(const std::vector<std::byte>& bytes) {
  constexpr std::array<char, 4> kZip{'P', 'K', 3, 4};
  return bytes.size() >= kZip.size() &&
         std::memcmp(bytes.data(), kZip.data(), kZip.size()) == 0;
}

// Whether it begins like a file of torch.save before PyTorch 1.6: with the
// pickle of a number of PyTorch's.
bool is_old_pickle(const std::vector<std::byte>& bytes) {
  constexpr std::string_view kNumber = "\x80\x02\x8a\nl\xfc\x9c\x46\xf9 j\xa8P";
  return bytes.size() >= kNumber.size() &&
         std::memcmp(bytes.data(), kNumber.data(), kNumber.size()) == 0;
}

// Whether all elements of the tensor lie in its storage: LibTorch trusts the
// extents and strides in a file.
bool lies_in_storage(const at::Tensor& tensor) {
  std::int64_t last = tensor.storage_offset();
  if (last < 0) return false;
  for (std::int64_t i = 0; i < tensor.dim(); ++i) {
    std::int64_t reach = 0;
    if (tensor.size(i) == 0) return true;
    if (tensor.size(i) < 0 || tensor.stride(i) < 0 ||
        __builtin_mul_overflow(tensor.size(i) - 1, tensor.stride(i), &reach) ||
        __builtin_add_overflow(last, reach, &last))
      return false;
  }
  return last < static_cast<std::int64_t>(tensor.storage().nbytes() /
                                          tensor.element_size());
}

at::Tensor dense_rows(const std::string& name, const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.layout() != at::kStrided || !tensor.is_cpu())
    throw InvalidArgument("\"" + name + "\" is not a dense tensor on the CPU");
  if (!lies_in_storage(tensor))
    throw InvalidArgument("\"" + name + "\" reaches beyond its memory");
  return tensor.contiguous();
}

void read_level(InputArchive& level, const std::string& prefix,
                TensorArchive& archive) {
  for (const std::string& key : level.keys()) {
    at::Tensor tensor;
    InputArchive below;
    c10::IValue value;
    if (level.try_read(key, tensor))
      archive.tensors.emplace(prefix + key, dense_rows(prefix + key, tensor));
    else if (prefix.empty() && key == kTextsKey && level.try_read(key, value))
      nlohmann::json::parse(value.toStringRef()).get_to(archive.metadata);
    else if (level.try_read(key, below))
      read_level(below, prefix + key + ".", archive);
  }
}

class MemoryReader final : public caffe2::serialize::ReadAdapterInterface {
 public:
  explicit MemoryReader(SharedBytes bytes) : bytes_(std::move(bytes)) {}
  std::size_t size() const override { return bytes_->size(); }
  std::size_t read(std::uint64_t position, void* to, std::size_t count,
                   const char* /*what*/) const override {
    if (position >= bytes_->size()) return 0;
    const std::size_t held =
        std::min(count, bytes_->size() - static_cast<std::size_t>(position));
    std::memcpy(to, bytes_->data() + position, held);
    return held;
  }

 private:
  SharedBytes bytes_;
};

// Whether Python's torch.save wrote an archive: LibTorch's zip file, but of a
// pickle that only Python can read.
bool is_of_python(const SharedBytes& bytes) {
  try {
    caffe2::serialize::PyTorchStreamReader reader(
        std::make_shared<MemoryReader>(bytes));
    return reader.hasRecord("data.pkl") && !reader.hasRecord("constants.pkl");
  } catch (const std::exception&) {
    return false;  // it is damaged
  }
}

[[noreturn]] void refuse_pythons(const std::string& file) {
  throw InvalidArgument(
      "\"" + file +
      "\" is a file of Python's torch.save, which only Python can read"
      "\n  next:    write the model's tensors in Python with "
      "safetensors.torch.save_file(model.state_dict(), "
      "\"model.safetensors\"), and name that file as the model; a run "
      "resumes from its own checkpoints alone");
}

TensorArchive parse_as_archive(const SharedBytes& bytes,
                               const std::string& file) {
  if (is_of_python(bytes)) refuse_pythons(file);
  TensorArchive archive;
  try {
    InputArchive input;
    input.load_from(reinterpret_cast<const char*>(bytes->data()), bytes->size(),
                    at::Device(at::kCPU));
    read_level(input, "", archive);
  } catch (const std::exception& error) {
    std::string_view reason = error.what();
    reason.remove_prefix(
        std::min(reason.find_first_not_of('\n'), reason.size()));
    throw InvalidArgument(
        "\"" + file +
        "\" is not a readable LibTorch archive: " + first_line(reason) +
        "\n  likely:  it is damaged or was cut short"
        "\n  next:    name another file, or write this one again");
  }
  return archive;
}

// What keeps an archive of these names and types from being read back; empty
// for nothing. Tensors without elements show it.
std::string problem_of_outline(const NamedTensors& outline) {
  try {
    const TensorArchive read = parse_as_archive(
        std::make_shared<const std::vector<std::byte>>(archive_of(outline, {})),
        "the archive");
    const bool same = std::ranges::equal(
        outline, read.tensors, [](const auto& one, const auto& other) {
          return one.first == other.first &&
                 one.second.scalar_type() == other.second.scalar_type();
        });
    return same ? "" : "LibTorch reads other names than it has written";
  } catch (const std::exception& error) {
    return std::string(first_line(error.what()));
  }
}

// LibTorch writes names into source code, and escapes nothing in them: it
// cannot read one that is a word of that language, such as `in`, or has a
// quotation mark.
void check_readable(const NamedTensors& dense) {
  NamedTensors outline;
  for (const auto& [name, tensor] : dense)
    outline.emplace(name, at::empty({0}, tensor.options()));
  const std::string problem = problem_of_outline(outline);
  if (problem.empty()) return;
  std::string culprit = "together, the names of its tensors";
  for (const auto& item : outline)
    if (!problem_of_outline(NamedTensors{item}).empty()) {
      culprit = "the name \"" + printable(item.first) + "\"";
      break;
    }
  throw InvalidArgument(
      "LibTorch's format cannot hold " + culprit +
      ": it could be written, but not read back: " + problem +
      "\n  next:    save as safetensors, which takes any name in UTF-8, or "
      "choose another name");
}

void write_as_archive(const fs::path& path, const TensorArchive& archive) {
  check_texts(archive.metadata);
  NamedTensors dense;
  for (const auto& [name, tensor] : archive.tensors)
    dense.emplace(name, storable(name, tensor));
  check_readable(dense);
  const std::vector<std::byte> bytes = archive_of(dense, archive.metadata);
  const std::array<std::span<const std::byte>, 1> pieces{bytes};
  replace_file(path, pieces);
}

}  // namespace

std::string_view ending_of(CheckpointFormat format) {
  switch (format) {
    case CheckpointFormat::kSafetensors:
      return ".safetensors";
    case CheckpointFormat::kLibTorch:
      return ".pt";
    case CheckpointFormat::kSharded:
      return "";
  }
  return "";
}

SharedBytes read_bytes(const fs::path& path) {
  return std::make_shared<const std::vector<std::byte>>(read_whole_file(path));
}

TensorArchive parse_archive(const SharedBytes& bytes, const std::string& file) {
  if (is_old_pickle(*bytes)) refuse_pythons(file);
  // The name must reveal the risk: reading LibTorch's archive runs its loader.
  if (is_archive(*bytes) &&
      file.ends_with(ending_of(CheckpointFormat::kSafetensors)))
    throw InvalidArgument(
        "\"" + file +
        "\" is not a safetensors file, but a LibTorch archive"
        "\n  likely:  it was renamed"
        "\n  next:    if you trust its author, rename it to .pt");
  return is_archive(*bytes) ? parse_as_archive(bytes, file)
                            : parse_as_safetensors(bytes, file);
}

Bytes to_bytes(const TensorArchive& archive) {
  Bytes bytes;
  write_as_safetensors(
      [&](std::span<const std::byte> part) {
        bytes.insert(bytes.end(), part.begin(), part.end());
      },
      archive);
  return bytes;
}

void write_archive(const fs::path& path, const TensorArchive& archive,
                   CheckpointFormat format) {
  switch (format) {
    case CheckpointFormat::kSafetensors:
      return replace_file(path, [&](const ByteSink& sink) {
        write_as_safetensors(sink, archive);
      });
    case CheckpointFormat::kLibTorch:
      return write_as_archive(path, archive);
    case CheckpointFormat::kSharded:
      throw InvalidArgument("cannot write \"" + path.string() +
                            "\": only a CheckpointFolder writes shards");
  }
}

}  // namespace lockstep
