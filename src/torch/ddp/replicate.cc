#include "src/torch/ddp/replicate.h"

#include <c10/core/GradMode.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/torch/tensor_collectives.h"
#include "src/comm/group/same_text.h"
#include "src/torch/tensor/module_tensors.h"
#include "src/torch/tensor/tensor_fault.h"
#include "src/torch/tensor/tensor_lists.h"
#include "src/torch/tensor/tensor_memory.h"

namespace lockstep {
namespace {

// Strides of dimensions of size 1 mean nothing, so they are left out.
std::string strides_of(const at::Tensor& tensor) {
  if (tensor.layout() != at::kStrided) return " sparse";
  if (tensor.is_contiguous()) return "";
  std::string text = " strides";
  for (std::int64_t i = 0; i < tensor.dim(); ++i)
    text += tensor.size(i) == 1 ? " *" : " " + std::to_string(tensor.stride(i));
  return text;
}

std::string other_device(const at::Tensor& tensor) {
  // The device's index may differ between ranks.
  return tensor.is_cpu() ? "" : c10::str(" on ", tensor.device().type());
}

std::string type_of_gradient(const at::Tensor& parameter) {
  const at::ScalarType type = gradient_type(parameter);
  return type == parameter.scalar_type() ? "" : c10::str(" gradients ", type);
}

// An expanded tensor cannot hold what another has of its elements.
std::string expansion_of(const at::Tensor& tensor) {
  const bool repeats = tensor.defined() && tensor.layout() == at::kStrided &&
                       without_repeats(tensor).sizes() != tensor.sizes();
  return repeats ? " expanded" : "";
}

// The properties that a broadcast requires to be equal; strides may differ,
// since it stages tensors that are not contiguous.
std::string describe(const torch::OrderedDict<std::string, at::Tensor>& named) {
  std::string text;
  for (const auto& item : named)
    text += c10::str(
        item.key(), " ", item.value().scalar_type(), " ", item.value().sizes(),
        item.value().layout() == at::kStrided ? "" : " sparse",
        expansion_of(item.value()), other_device(item.value()), "\n");
  return text;
}

// One line per tensor.
std::string describe(const torch::nn::Module& module) {
  std::string text;
  for (const auto& item : module.named_parameters())
    text += description_of_parameter(item.key(), item.value());
  for (const auto& item : module.named_buffers())
    text += c10::str("buffer ", item.key(), " ", item.value().scalar_type(),
                     " ", item.value().sizes(), expansion_of(item.value()),
                     other_device(item.value()), "\n");
  return text;
}

void check_movable(const std::string& name, const at::Tensor& tensor) {
  auto fault = fault_of_moved(tensor);
  if (!fault) fault = fault_of_written(without_repeats(tensor));
  if (fault)
    throw InvalidArgument(name + " cannot be copied to all ranks: it " +
                          fault->why + "\n  next:    " + fault->next);
}

void check_movable(const char* kind,
                   const torch::OrderedDict<std::string, at::Tensor>& tensors) {
  for (const auto& item : tensors)
    if (item.value().defined())
      check_movable(std::string(kind) + " " + item.key(), item.value());
}

// Without undefined tensors, which have no elements.
torch::OrderedDict<std::string, at::Tensor> in_order_of_names(
    const torch::OrderedDict<std::string, at::Tensor>& tensors) {
  std::map<std::string, at::Tensor> sorted;
  for (const auto& item : tensors)
    if (item.value().defined()) sorted.emplace(item.key(), item.value());
  torch::OrderedDict<std::string, at::Tensor> ordered;
  for (const auto& [name, tensor] : sorted) ordered.insert(name, tensor);
  return ordered;
}

// Buffers for an operation that only moves elements: a type that collectives do
// not support is passed as bytes.
std::vector<Buffer> views_to_move(const std::vector<at::Tensor>& contiguous) {
  const at::ScalarType type = contiguous.front().scalar_type();
  const bool is_known = std::ranges::any_of(
      kAllDataTypes,
      [type](DataType known) { return scalar_type_of(known) == type; });
  if (is_known) return views(contiguous);
  std::vector<at::Tensor> bytes;
  for (const at::Tensor& tensor : contiguous)
    bytes.push_back(tensor.flatten().view(at::kByte));
  return views(bytes);
}

using Collective = std::function<Work(const std::vector<at::Tensor>&)>;

void run_on_list(const std::vector<at::Tensor>& tensors,
                 const Collective& collective) {
  // Buffers that are written must not overlap; tied weights do.
  std::set<const void*> storages;
  std::vector<at::Tensor> contiguous;
  for (const at::Tensor& tensor : tensors) {
    check_movable("a tensor", tensor);
    const bool first = storages.insert(tensor.storage().data()).second;
    contiguous.push_back(first ? resolved(tensor).contiguous()
                               : tensor.clone(at::MemoryFormat::Contiguous));
  }
  collective(contiguous).wait();
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (!contiguous[i].is_same(tensors[i]))
      copy_elements(contiguous[i], tensors[i]);
    // Peers write without autograd's knowledge. Autograd must know of changed
    // parameters, but not of buffers, so that two forward passes may precede
    // one backward pass.
    if (tensors[i].requires_grad())
      tensors[i].unsafeGetTensorImpl()->bump_version();
  }
}

// In place, one operation per device and data type.
void run_on(at::TensorList tensors, const Collective& collective) {
  const c10::AutoGradMode no_grad(false);
  for (const auto& list : by_device_and_type(tensors))
    run_on_list(list, collective);
}

}  // namespace

std::string description_of_parameter(const std::string& name,
                                     const at::Tensor& tensor) {
  return c10::str("parameter ", name, " ", tensor.scalar_type(), " ",
                  tensor.sizes(), strides_of(tensor), other_device(tensor),
                  type_of_gradient(tensor),
                  tensor.requires_grad() ? "" : " frozen", "\n");
}

void check_same_model(ProcessGroup& group, const torch::nn::Module& module) {
  if (group.size() == 1) return;
  check_same_text(
      group, describe(module),
      {.what = "hold different models",
       .likely =
           "the module is built from options that are not the same on every "
           "rank",
       .next = "build the same module everywhere; only values may differ; rank "
               "0's are used"});
}

void check_one_device(const torch::nn::Module& module) {
  const auto parameters = module.named_parameters();
  for (const auto& item : parameters) {
    const auto& first = parameters.front();
    if (item.value().device() == first.value().device()) continue;
    throw InvalidArgument(c10::str(
        "the module's parameters are on two devices: ", first.key(), " is on ",
        first.value().device(), ", ", item.key(), " is on ",
        item.value().device(),
        "\n  next:    move the whole module to one device before wrapping "
        "it: module->to(device)"));
  }
}

void check_dense(const torch::nn::Module& module) {
  check_movable("parameter", module.named_parameters());
  check_movable("buffer", module.named_buffers());
}

std::vector<at::Tensor> parameters_and_buffers(
    const torch::nn::Module& module) {
  std::vector<at::Tensor> tensors = distinct_parameters(module);
  for (const at::Tensor& buffer : module.buffers()) tensors.push_back(buffer);
  return tensors;
}

torch::OrderedDict<std::string, at::Tensor> named_parameters_and_buffers(
    const torch::nn::Module& module) {
  torch::OrderedDict<std::string, at::Tensor> named;
  for (const auto& item : distinct_named_parameters(module))
    named.insert("parameter " + item.key(), item.value());
  for (const auto& item : module.named_buffers())
    named.insert("buffer " + item.key(), item.value());
  return named;
}

void broadcast_by_name(
    ProcessGroup& group,
    const torch::OrderedDict<std::string, at::Tensor>& tensors, int root) {
  if (group.size() == 1) return;
  const auto named = in_order_of_names(tensors);
  check_same_text(
      group, describe(named),
      {.what = "broadcast different tensors",
       .likely = "the models, or the dictionaries of their parameters, are not "
                 "the same on every rank",
       .next = "give tensors of the same names, types and shapes on every "
               "rank; their order may differ"});
  for (const auto& item : named) check_movable(item.key(), item.value());
  broadcast_tensors(group, named.values(), root);
}

void broadcast_tensors(ProcessGroup& group, at::TensorList tensors, int root) {
  if (group.size() > 1) broadcast_even_alone(group, tensors, root);
}

void broadcast_even_alone(ProcessGroup& group, at::TensorList tensors,
                          int root) {
  run_on(tensors, [&](const std::vector<at::Tensor>& list) {
    return group.broadcast(views_to_move(list), root,
                           {.label = "broadcast of tensors"});
  });
}

void average_tensors(ProcessGroup& group, at::TensorList tensors) {
  if (group.size() == 1) return;
  run_on(tensors, [&](const std::vector<at::Tensor>& list) {
    return group.all_reduce(views(list), ReduceOp::kAverage,
                            {.label = "average of tensors"});
  });
}

}  // namespace lockstep
