#include "src/train/checkpoint/checkpoint_seal.h"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <span>

namespace lockstep {
namespace {

constexpr int kVersion = 1;
constexpr const char* kVersionKey = "lockstep.checkpoint";
constexpr const char* kChecksumKey = "lockstep.checksum";

class Crc {
 public:
  void add(std::span<const std::byte> bytes) {
    value_ = ::crc32_z(value_, reinterpret_cast<const Bytef*>(bytes.data()),
                       bytes.size());
  }
  // Adds the length in 8 bytes first, so that two texts in a row cannot hash
  // like two others.
  void add(std::string_view text) {
    add(static_cast<std::int64_t>(text.size()));
    add(std::as_bytes(std::span(text)));
  }
  void add(std::int64_t number) { add(std::as_bytes(std::span(&number, 1))); }

  std::string hex() const {
    std::array<char, 16> text{};
    std::snprintf(text.data(), text.size(), "%08lx", value_);
    return text.data();
  }

 private:
  uLong value_ = ::crc32_z(0, nullptr, 0);
};

std::string checksum_of(const TensorArchive& archive) {
  Crc crc;
  for (const auto& [name, tensor] : archive.tensors) {
    crc.add(name);
    crc.add(name_of(stored_type_of(tensor.scalar_type())));
    crc.add(tensor.dim());
    for (const std::int64_t extent : tensor.sizes()) crc.add(extent);
    // In the order of their indices, as in files.
    const at::Tensor elements = tensor.contiguous();
    if (elements.numel() > 0)
      crc.add({static_cast<const std::byte*>(elements.const_data_ptr()),
               elements.nbytes()});
  }
  for (const auto& [key, text] : archive.metadata) {
    if (key == kChecksumKey) continue;
    crc.add(key);
    crc.add(text);
  }
  return crc.hex();
}

[[noreturn]] void refuse_damaged(const std::string& file,
                                 const std::string& problem) {
  throw InvalidArgument(
      "the checkpoint \"" + file + "\" is damaged: " + problem +
      "\n  likely:  the disk lost a part of it, or the file was changed"
      "\n  next:    use an earlier checkpoint");
}

bool is_later(const std::string& version) {
  int number = 0;
  std::from_chars(version.data(), version.data() + version.size(), number);
  return number > kVersion;
}

// Whether the archive's seal is valid except for the version: one flipped bit
// turns 1 into 3, 5 or 9.
bool is_ours_but_for_version(TensorArchive archive) {
  const auto checksum = archive.metadata.find(kChecksumKey);
  if (checksum == archive.metadata.end()) return false;
  archive.metadata[kVersionKey] = std::to_string(kVersion);
  return checksum_of(archive) == checksum->second;
}

constexpr std::string_view kWrapperPrefix = "module.";

// In PyTorch's file of a wrapped module all names have the prefix, while no
// name in the module itself has it.
bool has_prefix(const NamedTensors::value_type& item) {
  return item.first.starts_with(kWrapperPrefix);
}

}  // namespace

void seal(TensorArchive& archive) {
  archive.metadata[kVersionKey] = std::to_string(kVersion);
  archive.metadata[kChecksumKey] = checksum_of(archive);
}

bool is_sealed(const SafetensorsMetadata& metadata) {
  return metadata.contains(kVersionKey);
}

void check_seal(const TensorArchive& archive, const std::string& file) {
  const auto version = archive.metadata.find(kVersionKey);
  if (version == archive.metadata.end())
    throw InvalidArgument(
        "\"" + file +
        "\" is not a checkpoint to resume from: it holds tensors, but no "
        "state of a run"
        "\n  likely:  it is a trained model"
        "\n  next:    name a file that a run has saved, such as "
        "checkpoint-000001.safetensors");
  const std::string& text = version->second;
  if (is_later(text) && !is_ours_but_for_version(archive))
    throw NewerCheckpoint(
        "\"" + file + "\" is a checkpoint of format " + text +
        ", and this program knows formats up to " + std::to_string(kVersion) +
        "\n  likely:  a later version of Lockstep wrote it"
        "\n  next:    resume with that version, or train from the start into "
        "another folder");
  const auto checksum = archive.metadata.find(kChecksumKey);
  if (checksum == archive.metadata.end())
    refuse_damaged(file, "it has no checksum");
  if (text != std::to_string(kVersion))
    refuse_damaged(file, "it claims the unknown format \"" + text + "\"");
  if (const std::string found = checksum_of(archive); found != checksum->second)
    refuse_damaged(
        file, "its checksum is " + found + ", expected " + checksum->second);
}

NamedTensors model_tensors(const TensorArchive& file,
                           const NamedTensors& ours) {
  if (is_sealed(file.metadata)) return part_of(file.tensors, kModelPrefix);
  if (std::ranges::all_of(file.tensors, has_prefix) &&
      std::ranges::none_of(ours, has_prefix))
    return part_of(file.tensors, kWrapperPrefix);
  return file.tensors;
}

}  // namespace lockstep
