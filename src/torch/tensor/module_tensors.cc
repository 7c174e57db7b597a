#include "src/torch/tensor/module_tensors.h"

#include <atomic>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "lockstep/base/error.h"
#include "src/base/log.h"

namespace lockstep {
namespace {

constexpr const char* kNext =
    "; it counts once"
    "\n  likely:  weights are tied"
    "\n  next:    give optimizers of LibTorch's own the parameters() of the "
    "wrapper, not the module's: they make one step for each occurrence of a "
    "parameter";

void warn_once(const std::string& what) {
  static std::atomic_flag said;
  if (!said.test_and_set()) log(LogLevel::kWarn, what + kNext);
}

}  // namespace

torch::OrderedDict<std::string, at::Tensor> distinct_named_parameters(
    const torch::nn::Module& module) {
  torch::OrderedDict<std::string, at::Tensor> distinct;
  std::unordered_map<const c10::TensorImpl*, std::string> first_names;
  for (const auto& item : module.named_parameters()) {
    const auto [first, is_new] =
        first_names.emplace(item.value().unsafeGetTensorImpl(), item.key());
    if (is_new)
      distinct.insert(item.key(), item.value());
    else
      warn_once("parameter " + item.key() + " is " + first->second +
                " by another name");
  }
  return distinct;
}

std::vector<at::Tensor> distinct_parameters(const torch::nn::Module& module) {
  return distinct_named_parameters(module).values();
}

bool has_repeated_parameters(
    const std::vector<torch::optim::OptimizerParamGroup>& groups) {
  std::unordered_set<const c10::TensorImpl*> seen;
  for (const auto& group : groups)
    for (const at::Tensor& parameter : group.params())
      if (!seen.insert(parameter.unsafeGetTensorImpl()).second) {
        warn_once("an optimizer was given a parameter more than once");
        return true;
      }
  return false;
}

void drop_repeated_parameters(torch::optim::Optimizer& optimizer) {
  if (!has_repeated_parameters(optimizer.param_groups())) return;
  std::unordered_set<const c10::TensorImpl*> seen;
  for (auto& group : optimizer.param_groups())
    std::erase_if(group.params(), [&](const at::Tensor& parameter) {
      return !seen.insert(parameter.unsafeGetTensorImpl()).second;
    });
}

namespace {

// A tensor of a module, and the memory that it had before it was loaded.
struct Kept {
  at::Tensor tensor;
  at::Tensor memory;
};

std::vector<Kept> tensors_of(const torch::nn::Module& module) {
  std::vector<Kept> kept;
  for (const auto& tensors : {module.parameters(), module.buffers()})
    for (const at::Tensor& tensor : tensors)
      if (tensor.defined() && tensor.has_storage())
        kept.push_back({tensor, tensor.variable_data()});
  return kept;
}

void bring_back(std::vector<Kept>& kept) {
  for (Kept& one : kept) one.tensor.set_data(one.memory);
}

void check_same_kind(const Kept& one) {
  if (one.tensor.sizes() == one.memory.sizes() &&
      one.tensor.scalar_type() == one.memory.scalar_type())
    return;
  throw InvalidArgument(
      c10::str("cannot load a tensor of ", one.tensor.sizes(), " of type ",
               one.tensor.scalar_type(), " into one of ", one.memory.sizes(),
               " of type ", one.memory.scalar_type(),
               "\n  next:    load a file that a module with the same layers "
               "has saved"));
}

}  // namespace

void load_in_place(torch::serialize::InputArchive& archive,
                   torch::nn::Module& module) {
  std::vector<Kept> kept = tensors_of(module);
  const at::NoGradGuard no_grad;
  try {
    module.load(archive);
    for (const Kept& one : kept) check_same_kind(one);
  } catch (...) {
    bring_back(kept);
    throw;
  }
  for (Kept& one : kept)
    if (!one.tensor.is_alias_of(one.memory)) one.memory.copy_(one.tensor);
  bring_back(kept);
}

}  // namespace lockstep
