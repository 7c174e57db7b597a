#include "src/checkpoint/named_tensors.h"

#include <ATen/ATen.h>
#include <ATen/MemoryOverlap.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <array>
#include <optional>

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

// Whether the conversion of `from` to `to` keeps what its numbers say, up to
// rounding: of a number that does not become 0, the sign and the power of two.
bool keeps_numbers(const at::Tensor& from, const at::Tensor& to) {
  if (to.is_complex())
    return at::equal(
        (from.is_complex() ? from : from.to(at::kDouble)).isfinite(),
        to.isfinite());
  const at::Tensor before = from.to(at::kDouble), after = to.to(at::kDouble);
  if (!at::isFloatingType(to.scalar_type())) return at::equal(before, after);
  const at::Tensor changed = after.sign().mul(before.sign()).lt(0) |
                             after.abs().mul(2).lt(before.abs());
  return at::equal(before.isfinite(), after.isfinite()) &&
         !changed.logical_and(after.ne(0)).any().item<bool>();
}

at::Tensor fitted_tensor(const at::Tensor& ours, const at::Tensor& stored) {
  at::Tensor tensor = stored;
  if (ours.dim() + tensor.dim() == 1 && tensor.numel() == 1)
    tensor = tensor.reshape(ours.sizes());
  if (tensor.scalar_type() == ours.scalar_type() ||
      (tensor.is_complex() && !ours.is_complex()))
    return tensor;
  const at::Tensor converted = tensor.to(ours.scalar_type());
  return keeps_numbers(tensor, converted) ? converted : tensor;
}

// Another name of the same parameter or buffer that the file has; empty if
// there is none.
std::string other_name(const std::string& name, const NamedTensors& ours,
                       const NamedTensors& stored) {
  const at::Tensor& tensor = ours.at(name);
  for (const auto& [other, same] : ours)
    if (stored.contains(other) && same.has_storage() && tensor.has_storage() &&
        is_alias_of(same, tensor))
      return other;
  return "";
}

// Whether `name` is the count of a batch normalization whose statistics the
// file has without it, as before PyTorch 0.4.1.
bool is_untracked(const std::string& name, const NamedTensors& ours,
                  const NamedTensors& stored) {
  constexpr std::string_view kCount = "num_batches_tracked";
  if (!name.ends_with(kCount)) return false;
  const std::string mean =
      name.substr(0, name.size() - kCount.size()) + "running_mean";
  return ours.contains(mean) && stored.contains(mean);
}

// Whether what expand() repeats in `ours` is repeated in `stored` too.
bool repeats_alike(const at::Tensor& ours, const at::Tensor& stored) {
  if (at::has_internal_overlap(ours) != at::MemOverlap::Yes) return true;
  return at::equal(without_repeats(stored, ours).expand_as(stored), stored);
}

}  // namespace

NamedTensors tensors_of(const torch::nn::Module& module) {
  NamedTensors tensors;
  const auto add = [&](const auto& item) {
    if (!item.value().defined()) return;
    if (!tensors.emplace(item.key(), item.value()).second)
      throw InvalidArgument("the module has a parameter and a buffer named \"" +
                            item.key() +
                            "\", of which a file could hold only one"
                            "\n  next:    rename one of them");
  };
  for (const auto& item : module.named_parameters()) add(item);
  for (const auto& item : module.named_buffers()) add(item);
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
  if (!tensor.has_storage() || !is_memory_of_parent(tensor.const_data_ptr()))
    return;
  throw InvalidArgument(
      "tensor \"" + name +
      "\" cannot be saved by a forked process: it lies in memory that ranks "
      "share, and the parent keeps computing in it"
      "\n  next:    save in the parent; to continue training meanwhile, copy "
      "the model with module_cpu_copy() and save the copy in a thread");
}

void check_storable(const std::string& name, const at::Tensor& tensor) {
  const auto refuse = [&](const std::string& problem) {
    throw InvalidArgument("tensor \"" + name +
                          "\" cannot be saved: " + problem);
  };
  check_name(name);
  if (!tensor.defined()) refuse("it is undefined");
  if (tensor.is_meta())
    refuse(
        "it is on the device meta, which holds no elements"
        "\n  next:    give it memory on another device, with values");
  if (tensor.layout() != at::kStrided || tensor.is_nested())
    refuse(
        "it is sparse or nested, and files hold dense tensors"
        "\n  next:    save a dense tensor (tensor.to_dense()), or keep it out "
        "of what is saved");
  if (find_row(tensor.scalar_type()) == nullptr)
    refuse(tensor.toString() + " is not a type of safetensors files");
  check_not_parents(name, tensor);
}

at::Tensor storable(const std::string& name, const at::Tensor& tensor) {
  check_storable(name, tensor);
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
    LOCKSTEP_CHECK(tensors.emplace(prefix + name, tensor).second,
                   "two tensors of one name");
}

NamedTensors fitted(const NamedTensors& ours, NamedTensors stored) {
  const c10::AutoGradMode no_grad(false);
  for (const auto& [name, tensor] : ours) {
    const auto found = stored.find(name);
    if (found != stored.end())
      found->second = fitted_tensor(tensor, found->second);
    else if (const auto other = stored.find(other_name(name, ours, stored));
             other != stored.end())
      stored.emplace(name, fitted_tensor(tensor, other->second));
    else if (is_untracked(name, ours, stored))
      stored.emplace(name, tensor);
  }
  return stored;
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
    if (!tensor.has_storage() || tensor.is_meta()) {
      lines +=
          "\n  \"" + name + "\" is sparse or on the device meta in the model";
      continue;
    }
    const std::string there = describe(found->second);
    if (here != there)
      lines += "\n  \"" + name + "\" is " + there + " in the file, " + here +
               " in the model";
    else if (!repeats_alike(tensor, found->second))
      lines += "\n  \"" + name +
               "\" has elements that share memory in the model, as expand() "
               "makes them, and differ in the file: use contiguous()";
  }
  for (const auto& [name, tensor] : stored)
    if (!ours.contains(name))
      lines +=
          "\n  \"" + name + "\" is in the file only (" + describe(tensor) + ")";
  return lines;
}

void copy_over(const NamedTensors& ours, const NamedTensors& stored) {
  const c10::AutoGradMode no_grad(false);
  for (const auto& [name, tensor] : ours) {
    std::optional<c10::InferenceMode> mode;  // writes to its tensors alone
    if (tensor.is_inference()) mode.emplace();
    copy_elements(stored.at(name), tensor);
  }
}

}  // namespace lockstep
