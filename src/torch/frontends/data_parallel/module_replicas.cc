#include "src/torch/frontends/data_parallel/module_replicas.h"

#include <ATen/core/grad_mode.h>
#include <c10/util/StringUtil.h>

#include <string>
#include <typeinfo>
#include <unordered_set>
#include <utility>

#include "lockstep/base/error.h"
#include "src/torch/tensor/tensor_lists.h"
#include "src/torch/tensor/tensor_memory.h"

namespace lockstep::data_parallel {
namespace {

using Module = std::shared_ptr<torch::nn::Module>;

Module cloned(const torch::nn::Module& module, at::Device device) try {
  return module.clone(device);
} catch (const c10::Error& error) {
  throw InvalidArgument("DataParallel: " + module.name() +
                        " cannot be cloned: " + error.what_without_backtrace() +
                        "\n  next:    derive it from torch::nn::Cloneable, "
                        "or give a factory that makes another module like it");
}

Module made(const ModuleReplicas::Factory& make, const Module& module,
            at::Device device) {
  Module copy = make();
  if (!copy || copy == module)
    throw InvalidArgument(
        "DataParallel: the factory did not return a new module"
        "\n  next:    return a new module with the same parameters from each "
        "call");
  copy->to(device);
  return copy;
}

Module moved(const Module& module, at::Device device) {
  module->to(device);
  return module;
}

// Marks the first occurrence of each parameter.
std::vector<bool> firsts_of(const std::vector<at::Tensor>& parameters) {
  std::unordered_set<const c10::TensorImpl*> seen;
  std::vector<bool> firsts;
  for (const at::Tensor& parameter : parameters)
    firsts.push_back(seen.insert(parameter.unsafeGetTensorImpl()).second);
  return firsts;
}

[[noreturn]] void refuse(std::size_t replica, const std::string& difference) {
  throw InvalidArgument(c10::str(
      "DataParallel: replica ", replica, " is a different model: ", difference,
      "\n  next:    make the factory, or clone(), return a module like the "
      "original"));
}

void check_tensors(const char* what, std::size_t replica,
                   const torch::OrderedDict<std::string, at::Tensor>& ours,
                   const torch::OrderedDict<std::string, at::Tensor>& theirs) {
  if (ours.size() != theirs.size())
    refuse(replica, c10::str(ours.size(), " ", what, " in the module, ",
                             theirs.size(), " in the replica"));
  for (const auto& item : ours) {
    const at::Tensor* other = theirs.find(item.key());
    if (other == nullptr)
      refuse(replica, c10::str(what, " ", item.key(), " is missing"));
    if (other->defined() != item.value().defined() ||
        (other->defined() && other->sizes() != item.value().sizes()))
      refuse(replica, c10::str(what, " ", item.key(), " has another shape"));
  }
}

// Throws unless the copy has the module's structure.
void check_alike(const torch::nn::Module& module, const torch::nn::Module& copy,
                 std::size_t replica) {
  if (typeid(module) != typeid(copy)) refuse(replica, "it is of another class");
  check_tensors("parameters", replica, module.named_parameters(),
                copy.named_parameters());
  check_tensors("buffers", replica, module.named_buffers(),
                copy.named_buffers());
  if (module.modules().size() != copy.modules().size())
    refuse(replica, "it has other submodules");
  if (firsts_of(module.parameters()) != firsts_of(copy.parameters()))
    refuse(replica, "it ties other parameters");
}

void take_shape_of(const at::Tensor& to, const at::Tensor& from) {
  if (to.scalar_type() != from.scalar_type() || to.sizes() != from.sizes())
    to.set_data(at::empty_like(from, from.options().device(to.device())));
}

}  // namespace

ModuleReplicas::Parts::Parts(Module whole)
    : module(std::move(whole)),
      submodules(module->modules()),
      buffers(module->buffers()) {
  const std::vector<at::Tensor> all = module->parameters();
  const std::vector<bool> firsts = firsts_of(all);
  for (std::size_t i = 0; i < all.size(); ++i)
    if (firsts[i]) parameters.push_back(all[i]);
  seen.resize(parameters.size());
}

ModuleReplicas::ModuleReplicas(Module module,
                               std::span<const at::Device> devices,
                               const Factory& make)
    : original_(moved(module, devices[0])) {
  for (std::size_t i = 0; i < devices.size(); ++i) {
    Module copy =
        make ? made(make, module, devices[i]) : cloned(*module, devices[i]);
    check_alike(*module, *copy, i);
    copies_.emplace_back(std::move(copy));
  }
  refresh();  // so that shared tensors take no memory
}

void ModuleReplicas::refresh() {
  // The module's tensors may have been replaced.
  Parts now(original_.module);
  check_that_nothing_came_or_went(now);
  original_ = std::move(now);
  const at::NoGradGuard no_grad;
  for (Parts& copy : copies_) {
    check_buffers(copy);
    refresh_modes(copy);
    refresh_parameters(copy);
    refresh_buffers(copy);
  }
}

void ModuleReplicas::check_that_nothing_came_or_went(const Parts& now) const {
  if (now.parameters.size() != original_.parameters.size() ||
      now.buffers.size() != original_.buffers.size() ||
      now.submodules.size() != original_.submodules.size())
    throw InvalidArgument(
        "DataParallel: the module has other parameters, buffers or "
        "submodules than when it was wrapped"
        "\n  next:    wrap it again after such a change");
}

// A copy's forward() may register a buffer, or give the name of one to another
// tensor, of which the module, whose forward() does not run, would not know.
void ModuleReplicas::check_buffers(const Parts& copy) const {
  const auto now = copy.module->named_buffers();
  if (now.size() != original_.buffers.size())
    throw InvalidArgument(c10::str(
        "DataParallel: a pass gave a replica ", now.size(),
        " buffers, and the module has ", original_.buffers.size(),
        "\n  next:    register all buffers in the module's constructor, or run "
        "a pass of the module before wrapping it"));
  for (std::size_t i = 0; i < now.size(); ++i)
    if (!now[i].value().is_same(copy.buffers[i]))
      throw InvalidArgument(
          "DataParallel: a pass has replaced the buffer " + now[i].key() +
          " of a replica, whose new values would be lost"
          "\n  next:    write to the buffer in forward(), as by copy_()");
}

void ModuleReplicas::refresh_parameters(Parts& copy) const {
  for (std::size_t i = 0; i < original_.parameters.size(); ++i) {
    const at::Tensor& from = original_.parameters[i];
    const at::Tensor& to = copy.parameters[i];
    if (to.requires_grad() != from.requires_grad())
      to.requires_grad_(from.requires_grad());
    if (gradient_type(to) != gradient_type(from))
      to.set_grad_dtype(gradient_type(from));
    if (to.device() == from.device()) {
      make_alias(to, from);
    } else {
      take_shape_of(to, from);
      copy_if_changed(from, to, copy.seen[i]);
    }
  }
}

// Copies without autograd's knowledge: a backward pass of an earlier pass may
// still check that the buffers have not been written to.
void ModuleReplicas::refresh_buffers(const Parts& copy) const {
  const bool first = &copy == copies_.data();
  for (std::size_t i = 0; i < original_.buffers.size(); ++i) {
    const at::Tensor& from = original_.buffers[i];
    const at::Tensor& to = copy.buffers[i];
    if (!from.defined()) continue;
    if (first) {
      make_alias(to, from);
    } else {
      take_shape_of(to, from);
      copy_elements(from, to.variable_data());
    }
  }
}

// A module's mode is set before its submodules', which may differ from it.
void ModuleReplicas::refresh_modes(const Parts& copy) const {
  for (std::size_t i = 0; i < original_.submodules.size(); ++i)
    if (const bool training = original_.submodules[i]->is_training();
        copy.submodules[i]->is_training() != training)
      copy.submodules[i]->train(training);
}

std::size_t ModuleReplicas::bytes_on(int replica) const {
  if (replica == 0)
    return bytes_of(original_.parameters) + bytes_of(original_.buffers);
  const Parts& copy = copies_[static_cast<std::size_t>(replica)];
  std::size_t bytes = bytes_of(copy.buffers);
  for (std::size_t i = 0; i < copy.parameters.size(); ++i)
    if (!is_alias_of(copy.parameters[i], original_.parameters[i]))
      bytes += copy.parameters[i].nbytes();
  return bytes;
}

}  // namespace lockstep::data_parallel
