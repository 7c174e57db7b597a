#include "lockstep/train/named_tensors.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>

#include "lockstep/base/error.h"
#include "lockstep/torch/tensor_buffer.h"

namespace lockstep {
namespace {

bool can_be_stored(const at::Tensor& tensor) {
  return std::ranges::any_of(kAllDataTypes, [&](DataType type) {
    return scalar_type_of(type) == tensor.scalar_type();
  });
}

std::string describe(const at::Tensor& tensor) {
  std::string text =
      can_be_stored(tensor)
          ? std::string(name_of(data_type_of(tensor.scalar_type())))
          : tensor.toString();
  text += " [";
  for (std::int64_t i = 0; i < tensor.dim(); ++i)
    text += (i > 0 ? ", " : "") + std::to_string(tensor.size(i));
  return text + "]";
}

}  // namespace

NamedTensors tensors_of(const torch::nn::Module& module) {
  NamedTensors tensors;
  for (const auto& item : module.named_parameters())
    tensors.emplace(item.key(), item.value());
  for (const auto& item : module.named_buffers())
    if (item.value().defined()) tensors.emplace(item.key(), item.value());
  return tensors;
}

at::Tensor storable(const std::string& name, const at::Tensor& tensor) {
  if (!can_be_stored(tensor))
    throw InvalidArgument("tensor \"" + name +
                          "\" cannot be saved: " + tensor.toString() +
                          " is no type that safetensors files hold");
  return tensor.detach().to(at::kCPU).contiguous();
}

NamedTensors part_of(const NamedTensors& tensors, std::string_view prefix) {
  NamedTensors part;
  for (const auto& [name, tensor] : tensors)
    if (name.starts_with(prefix))
      part.emplace(name.substr(prefix.size()), tensor);
  return part;
}

void add_part(NamedTensors& tensors, const std::string& prefix,
              const NamedTensors& part) {
  for (const auto& [name, tensor] : part)
    tensors.insert_or_assign(prefix + name, tensor);
}

std::string differences(const NamedTensors& ours, const NamedTensors& stored) {
  std::string lines;
  for (const auto& [name, tensor] : ours) {
    const auto found = stored.find(name);
    const std::string here = describe(tensor);
    if (found == stored.end()) {
      lines += "\n  \"" + name + "\" is missing from the file (" + here + ")";
      continue;
    }
    const std::string there = describe(found->second);
    if (here != there)
      lines += "\n  \"" + name + "\" is " + there + " in the file, " + here +
               " in the model";
  }
  for (const auto& [name, tensor] : stored)
    if (!ours.contains(name))
      lines +=
          "\n  \"" + name + "\" is in the file only (" + describe(tensor) + ")";
  return lines;
}

void copy_over(const NamedTensors& ours, const NamedTensors& stored) {
  const c10::AutoGradMode no_grad(false);
  for (const auto& [name, tensor] : ours)
    at::Tensor(tensor).copy_(stored.at(name));
}

}  // namespace lockstep
