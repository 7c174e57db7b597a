#include "src/train/checkpoint/named_tensors.h"

#include <ATen/ATen.h>
#include <ATen/MemoryOverlap.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <array>

#include "lockstep/base/error.h"
#include "src/comm/memory/forked_memory.h"
#include "src/torch/tensor/tensor_memory.h"

namespace lockstep {
namespace {

struct ScalarTypeRow {
  at::ScalarType type{};
  const char* name = "";
};

// In the order of SafetensorsType.
constexpr std::array<ScalarTypeRow, kSafetensorsTypes> kTypes{
    {{at::kDouble, "float64"},
     {at::kFloat, "float32"},
     {at::kHalf, "float16"},
     {at::kBFloat16, "bfloat16"},
     {at::kFloat8_e4m3fn, "float8_e4m3"},
     {at::kFloat8_e5m2, "float8_e5m2"},
     {at::kFloat8_e8m0fnu, "float8_e8m0"},
     {at::kComplexFloat, "complex64"},
     {at::kLong, "int64"},
     {at::kInt, "int32"},
     {at::kShort, "int16"},
     {at::kChar, "int8"},
     {at::kUInt64, "uint64"},
     {at::kUInt32, "uint32"},
     {at::kUInt16, "uint16"},
     {at::kByte, "uint8"},
     {at::kBool, "bool"}}};

// Null for a type that files cannot hold.
const ScalarTypeRow* find_row(at::ScalarType type) {
  const auto* const found =
      std::ranges::find(kTypes, type, &ScalarTypeRow::type);
  return found == kTypes.end() ? nullptr : found;
}

std::string describe(const at::Tensor& tensor) {
  const ScalarTypeRow* const row = find_row(tensor.scalar_type());
  std::string text = row ? row->name : tensor.toString();
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

SafetensorsType stored_type_of(at::ScalarType type) {
  if (const ScalarTypeRow* const row = find_row(type))
    return static_cast<SafetensorsType>(row - kTypes.data());
  throw InvalidArgument(std::string("files of tensors do not support the "
                                    "type ") +
                        c10::toString(type));
}

at::ScalarType scalar_type_of(SafetensorsType type) {
  return kTypes[static_cast<std::size_t>(type)].type;
}

void check_not_parents(const std::string& name, const at::Tensor& tensor) {
  if (!is_memory_of_parent(tensor.const_data_ptr())) return;
  throw InvalidArgument(
      "tensor \"" + name +
      "\" cannot be saved by a forked process: it lies in memory that ranks "
      "share, and the parent keeps computing in it"
      "\n  next:    save in the parent; to continue training meanwhile, copy "
      "the model with module_cpu_copy() and save the copy in a thread");
}

at::Tensor storable(const std::string& name, const at::Tensor& tensor) {
  if (find_row(tensor.scalar_type()) == nullptr)
    throw InvalidArgument("tensor \"" + name +
                          "\" cannot be saved: " + tensor.toString() +
                          " is not a type of safetensors files");
  check_not_parents(name, tensor);
  return resolved(tensor.detach().to(at::kCPU)).contiguous();
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
    if (at::has_internal_overlap(tensor) == at::MemOverlap::Yes)
      lines += "\n  \"" + name +
               "\" has elements that share memory in the model, as expand() "
               "makes them: use contiguous()";
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
