#include "src/checkpoint/checkpoint_seal.h"

#include <algorithm>
#include <charconv>
#include <span>

#include "src/checkpoint/checkpoint_checksum.h"
#include "src/checkpoint/checkpoint_set.h"
#include "src/checkpoint/state_pieces.h"

namespace lockstep {
namespace {

std::string checksum_of(const TensorArchive& archive) {
  CheckpointChecksum checksum;
  for (const auto& [name, tensor] : archive.tensors) {
    checksum.add_tensor(name, name_of(stored_type_of(tensor.scalar_type())),
                        tensor.sizes());
    // In the order of their indices, as in files.
    const at::Tensor elements = tensor.contiguous();
    if (elements.numel() > 0)
      checksum.add({static_cast<const std::byte*>(elements.const_data_ptr()),
                    elements.nbytes()});
  }
  checksum.add_texts(archive.metadata);
  return checksum.hex();
}

bool is_later(const std::string& version) {
  int number = 0;
  std::from_chars(version.data(), version.data() + version.size(), number);
  return number > kCheckpointVersion;
}

// Whether the archive's seal is valid except for the version: one flipped bit
// turns 1 into 3, 5 or 9.
bool is_ours_but_for_version(TensorArchive archive) {
  const auto checksum = archive.metadata.find(kCheckpointChecksumKey);
  if (checksum == archive.metadata.end()) return false;
  archive.metadata[kCheckpointVersionKey] = std::to_string(kCheckpointVersion);
  return checksum_of(archive) == checksum->second;
}

// Empty if the archive's checksum is right.
std::string problem_of_checksum(const TensorArchive& archive) {
  const std::string& expected = archive.metadata.at(kCheckpointChecksumKey);
  const std::string found = checksum_of(archive);
  if (found == expected) return "";
  return "its checksum is " + found + ", expected " + expected;
}

// Of a trained model. Other programs, and earlier versions, write none.
void check_checksum(const TensorArchive& archive, const std::string& file) {
  if (!archive.metadata.contains(kCheckpointChecksumKey)) return;
  const std::string problem = problem_of_checksum(archive);
  if (problem.empty()) return;
  throw InvalidArgument(
      "\"" + file + "\" is damaged: " + problem +
      "\n  likely:  the disk lost a part of it, or a program changed it and "
      "kept its checksum"
      "\n  next:    use another copy, or save the model again, without the "
      "text \"" +
      kCheckpointChecksumKey + "\" if another program saves it");
}

// In PyTorch's file of a wrapped module all names have the wrapper's prefix,
// while no name in the module itself has it. Returns that prefix, or "".
std::string_view prefix_of_wrapper(const NamedTensors& stored,
                                   const NamedTensors& ours) {
  // DistributedDataParallel's and torch.compile's.
  for (const std::string_view prefix : {"module.", "_orig_mod."}) {
    const auto has_prefix = [&](const NamedTensors::value_type& item) {
      return item.first.starts_with(prefix);
    };
    if (!stored.empty() && std::ranges::all_of(stored, has_prefix) &&
        std::ranges::none_of(ours, has_prefix))
      return prefix;
  }
  return "";
}

}  // namespace

void seal(TensorArchive& archive) {
  archive.metadata[kCheckpointVersionKey] = std::to_string(kCheckpointVersion);
  add_checksum(archive);
}

void add_checksum(TensorArchive& archive) {
  archive.metadata[kCheckpointChecksumKey] = checksum_of(archive);
}

bool is_sealed(const SafetensorsMetadata& metadata) {
  return metadata.contains(kCheckpointVersionKey);
}

void check_seal(const TensorArchive& archive, const std::string& file) {
  const auto version = archive.metadata.find(kCheckpointVersionKey);
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
    refuse_version(file, text, kCheckpointVersion);
  if (!archive.metadata.contains(kCheckpointChecksumKey))
    refuse_damaged(file, "it has no checksum");
  if (text != std::to_string(kCheckpointVersion))
    refuse_damaged(file, "it claims the unknown format \"" + text + "\"");
  if (const std::string problem = problem_of_checksum(archive);
      !problem.empty())
    refuse_damaged(file, problem);
}

TensorArchive read_model_archive(const std::filesystem::path& path) {
  if (CheckpointSet::is_at(path))
    return read_model_archive(CheckpointSet(path));
  TensorArchive archive = parse_archive(read_bytes(path), path.string());
  if (is_sealed(archive.metadata)) {
    check_seal(archive, path.string());
  } else {
    check_checksum(archive, path.string());
    archive.metadata.erase(kCheckpointChecksumKey);
  }
  return archive;
}

TensorArchive read_model_archive(const CheckpointSet& set) {
  set.check_shards();
  TensorArchive archive{.tensors = read_tensors(set, kModelPrefix),
                        .metadata = set.manifest().texts};
  archive.metadata[kCheckpointVersionKey] = std::to_string(kCheckpointVersion);
  return archive;
}

NamedTensors model_tensors(const TensorArchive& file,
                           const NamedTensors& ours) {
  if (is_sealed(file.metadata)) return part_of(file.tensors, kModelPrefix);
  NamedTensors tensors = file.tensors;
  // A wrapper may wrap another.
  for (;;) {
    const std::string_view prefix = prefix_of_wrapper(tensors, ours);
    if (prefix.empty()) return tensors;
    tensors = part_of(tensors, prefix);
  }
}

}  // namespace lockstep
