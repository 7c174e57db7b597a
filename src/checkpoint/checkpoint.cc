#include "lockstep/checkpoint/checkpoint.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <array>
#include <string>
#include <utility>

#include "lockstep/base/error.h"
#include "src/checkpoint/checkpoint_checksum.h"
#include "src/checkpoint/checkpoint_seal.h"
#include "src/checkpoint/tensor_archive.h"

namespace lockstep {
namespace {

// Copies by their original tensor.
using Copies = std::map<const c10::TensorImpl*, at::Tensor>;

at::Tensor copy_of(const std::string& name, const at::Tensor& tensor,
                   Copies& copies) {
  check_not_parents(name, tensor);
  at::Tensor& copy = copies[tensor.unsafeGetTensorImpl()];
  if (!copy.defined())
    copy = tensor.detach().to(at::kCPU, tensor.scalar_type(),
                              /*non_blocking=*/false, /*copy=*/true);
  return copy;
}

// The tensors of one module, and below it those of its children.
struct Tensors : torch::nn::Module {
  explicit Tensors(const std::string& name) : Module(name) {}
};

std::shared_ptr<torch::nn::Module> copy_level(const torch::nn::Module& module,
                                              Copies& copies) {
  const auto level = std::make_shared<Tensors>(module.name());
  for (const auto& item : module.named_parameters(/*recurse=*/false))
    level->register_parameter(item.key(),
                              copy_of(item.key(), item.value(), copies),
                              item.value().requires_grad());
  for (const auto& item : module.named_buffers(/*recurse=*/false))
    if (item.value().defined())
      level->register_buffer(item.key(),
                             copy_of(item.key(), item.value(), copies));
  for (const auto& child : module.named_children())
    level->register_module(child.key(), copy_level(*child.value(), copies));
  return level;
}

// The texts by which the reader knows a run's checkpoint.
constexpr std::array kOwnTexts{kCheckpointVersionKey, kCheckpointChecksumKey};

void refuse_own_texts(const SafetensorsMetadata& metadata) {
  for (const char* key : kOwnTexts)
    if (metadata.contains(key))
      throw InvalidArgument(
          std::string("the metadata to save with a model has the text \"") +
          key +
          "\", by which readers would take the file for a run's checkpoint"
          "\n  next:    save without it");
}

}  // namespace

void save_checkpoint(const std::filesystem::path& path,
                     const torch::nn::Module& module,
                     const SafetensorsMetadata& metadata,
                     CheckpointFormat format) {
  refuse_own_texts(metadata);
  TensorArchive archive{tensors_of(module), metadata};
  // LibTorch's archive is a zip file, which has checksums of its own.
  if (format == CheckpointFormat::kSafetensors) {
    for (auto& [name, tensor] : archive.tensors)
      tensor = storable(name, tensor);
    add_checksum(archive);
  }
  write_archive(path, archive, format);
}

SafetensorsMetadata load_checkpoint(const std::filesystem::path& path,
                                    torch::nn::Module& module) {
  TensorArchive file = read_model_archive(path);
  const NamedTensors ours = tensors_of(module);
  const NamedTensors stored = fitted(ours, model_tensors(file, ours));
  if (const std::string lines = differences(ours, stored); !lines.empty())
    throw InvalidArgument(
        "the checkpoint \"" + path.string() + "\" does not fit the model:" +
        lines + "\n  next:    load it into the model that it was saved from");
  copy_over(ours, stored);
  for (const char* key : kOwnTexts) file.metadata.erase(key);
  return std::move(file.metadata);
}

std::shared_ptr<torch::nn::Module> module_cpu_copy(
    const torch::nn::Module& module) {
  const c10::AutoGradMode no_grad(false);
  Copies copies;
  return copy_level(module, copies);
}

}  // namespace lockstep
