#include "lockstep/train/checkpoint.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/torch/tensor_buffer.h"

namespace lockstep {
namespace {

using NamedTensors = std::map<std::string, at::Tensor>;

NamedTensors tensors_of(const torch::nn::Module& module) {
  NamedTensors tensors;
  for (const auto& item : module.named_parameters())
    tensors.emplace(item.key(), item.value());
  for (const auto& item : module.named_buffers())
    if (item.value().defined()) tensors.emplace(item.key(), item.value());
  return tensors;
}

bool can_be_stored(const at::Tensor& tensor) {
  return std::ranges::any_of(kAllDataTypes, [&](DataType type) {
    return scalar_type_of(type) == tensor.scalar_type();
  });
}

std::string shape_text(at::IntArrayRef shape) {
  std::string text = "[";
  for (const auto extent : shape)
    text += (text.size() > 1 ? ", " : "") + std::to_string(extent);
  return text + "]";
}

std::string describe(DataType type, at::IntArrayRef shape) {
  return std::string(name_of(type)) + " " + shape_text(shape);
}

// One line for each way in which the file does not fit the module.
std::string differences(const NamedTensors& ours,
                        const std::map<std::string, TensorBytes>& stored) {
  std::string lines;
  for (const auto& [name, tensor] : ours) {
    const auto found = stored.find(name);
    const std::string here =
        describe(data_type_of(tensor.scalar_type()), tensor.sizes());
    if (found == stored.end()) {
      lines += "\n  \"" + name + "\" is missing from the file (" + here + ")";
      continue;
    }
    const std::string there = describe(found->second.type, found->second.shape);
    if (here != there)
      lines += "\n  \"" + name + "\" is " + there + " in the file, " + here +
               " in the model";
  }
  for (const auto& [name, tensor] : stored)
    if (!ours.contains(name))
      lines += "\n  \"" + name + "\" is in the file only (" +
               describe(tensor.type, tensor.shape) + ")";
  return lines;
}

constexpr std::string_view kWrapperPrefix = "module.";

// Whether the names in a file are those of a wrapped module, as PyTorch saves
// it: all of them, while the module itself has none like that.
bool has_names_of_wrapper(const std::vector<TensorBytes>& stored,
                          const NamedTensors& ours) {
  const auto prefixed = [](std::string_view name) {
    return name.starts_with(kWrapperPrefix);
  };
  return std::ranges::all_of(stored, prefixed, &TensorBytes::name) &&
         std::ranges::none_of(
             ours, [&](const auto& item) { return prefixed(item.first); });
}

}  // namespace

void save_checkpoint(const std::filesystem::path& path,
                     const torch::nn::Module& module,
                     const SafetensorsMetadata& metadata) {
  std::vector<at::Tensor> kept;  // what `stored` borrows
  std::vector<TensorBytes> stored;
  for (const auto& [name, tensor] : tensors_of(module)) {
    if (!can_be_stored(tensor))
      throw InvalidArgument("tensor \"" + name +
                            "\" cannot be saved: " + tensor.toString() +
                            " is no type that safetensors files hold");
    const at::Tensor dense = tensor.detach().to(at::kCPU).contiguous();
    kept.push_back(dense);
    stored.push_back({name,
                      data_type_of(dense.scalar_type()),
                      dense.sizes().vec(),
                      {static_cast<const std::byte*>(dense.const_data_ptr()),
                       dense.nbytes()}});
  }
  write_safetensors(path, stored, metadata);
}

SafetensorsMetadata load_checkpoint(const std::filesystem::path& path,
                                    torch::nn::Module& module) {
  const SafetensorsFile file(path);
  const NamedTensors ours = tensors_of(module);
  const std::size_t skipped = has_names_of_wrapper(file.view().tensors, ours)
                                  ? kWrapperPrefix.size()
                                  : 0;
  std::map<std::string, TensorBytes> stored;
  for (const TensorBytes& tensor : file.view().tensors)
    stored.emplace(tensor.name.substr(skipped), tensor);
  if (const std::string lines = differences(ours, stored); !lines.empty())
    throw InvalidArgument(
        "the checkpoint \"" + path.string() + "\" does not fit the model:" +
        lines + "\n  next:    load it into the model that it was saved from");

  const c10::NoGradGuard no_grad;
  for (const auto& [name, tensor] : ours) {
    const TensorBytes& bytes = stored.at(name);
    const at::Tensor borrowed =
        at::from_blob(const_cast<std::byte*>(bytes.bytes.data()), bytes.shape,
                      tensor.options().device(at::kCPU).requires_grad(false));
    at::Tensor(tensor).copy_(borrowed);
  }
  return file.view().metadata;
}

}  // namespace lockstep
