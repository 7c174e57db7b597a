#include "lockstep/train/checkpoint.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/train/checkpoint_seal.h"

namespace lockstep {
namespace {

constexpr std::string_view kWrapperPrefix = "module.";

// Whether the names in a file are those of a wrapped module, as PyTorch saves
// it: all of them, while the module itself has none like that.
bool has_names_of_wrapper(const NamedTensors& stored,
                          const NamedTensors& ours) {
  const auto prefixed = [](const auto& item) {
    return item.first.starts_with(kWrapperPrefix);
  };
  return std::ranges::all_of(stored, prefixed) &&
         std::ranges::none_of(ours, prefixed);
}

}  // namespace

void save_checkpoint(const std::filesystem::path& path,
                     const torch::nn::Module& module,
                     const SafetensorsMetadata& metadata,
                     CheckpointFormat format) {
  write_archive(path, {tensors_of(module), metadata}, format);
}

SafetensorsMetadata load_checkpoint(const std::filesystem::path& path,
                                    torch::nn::Module& module) {
  TensorArchive file = parse_archive(read_bytes(path), path.string());
  const NamedTensors ours = tensors_of(module);
  NamedTensors stored = std::move(file.tensors);
  if (is_sealed(file.metadata))
    stored = part_of(stored, kModelPrefix);
  else if (has_names_of_wrapper(stored, ours))
    stored = part_of(stored, kWrapperPrefix);
  if (const std::string lines = differences(ours, stored); !lines.empty())
    throw InvalidArgument(
        "the checkpoint \"" + path.string() + "\" does not fit the model:" +
        lines + "\n  next:    load it into the model that it was saved from");
  copy_over(ours, stored);
  return file.metadata;
}

}  // namespace lockstep
