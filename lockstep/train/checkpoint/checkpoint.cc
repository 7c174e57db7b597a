#include "lockstep/train/checkpoint/checkpoint.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/train/checkpoint/checkpoint_seal.h"

namespace lockstep {
namespace {

constexpr std::string_view kWrapperPrefix = "module.";

// In PyTorch's file of a wrapped module all names have the prefix, while no
// name in the module itself has it.
bool has_prefix(const NamedTensors::value_type& item) {
  return item.first.starts_with(kWrapperPrefix);
}

}  // namespace

void save_checkpoint(const std::filesystem::path& path,
                     const torch::nn::Module& module,
                     const SafetensorsMetadata& metadata,
                     CheckpointFormat format) {
  write_archive(path, {tensors_of(module), metadata}, format);
}

NamedTensors model_tensors(const TensorArchive& file,
                           const NamedTensors& ours) {
  if (is_sealed(file.metadata)) return part_of(file.tensors, kModelPrefix);
  if (std::ranges::all_of(file.tensors, has_prefix) &&
      std::ranges::none_of(ours, has_prefix))
    return part_of(file.tensors, kWrapperPrefix);
  return file.tensors;
}

SafetensorsMetadata load_checkpoint(const std::filesystem::path& path,
                                    torch::nn::Module& module) {
  const TensorArchive file = parse_archive(read_bytes(path), path.string());
  if (is_sealed(file.metadata)) check_seal(file, path.string());
  const NamedTensors ours = tensors_of(module);
  const NamedTensors stored = model_tensors(file, ours);
  if (const std::string lines = differences(ours, stored); !lines.empty())
    throw InvalidArgument(
        "the checkpoint \"" + path.string() + "\" does not fit the model:" +
        lines + "\n  next:    load it into the model that it was saved from");
  copy_over(ours, stored);
  return file.metadata;
}

}  // namespace lockstep
