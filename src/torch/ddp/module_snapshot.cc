#include "src/torch/ddp/module_snapshot.h"

#include <ATen/core/Formatting.h>
#include <c10/util/StringUtil.h>

#include <algorithm>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

[[noreturn]] void refuse(const std::string& name, const std::string& what) {
  throw InvalidArgument(
      "parameter " + name +
      " has changed since the module was wrapped: " + what +
      "\n  next:    change the module first and wrap it then; after a change "
      "destroy the DistributedDataParallel and make a new one, and a new "
      "optimizer; to run it without training it, like a discriminator while "
      "a generator trains, call module()->forward()");
}

// Module gives its subclasses access to the parameters that it has registered,
// undefined ones included; other code gets copies.
struct OwnParameters : torch::nn::Module {
  static const auto& of(const torch::nn::Module& module) {
    return module.*(&OwnParameters::parameters_);
  }
};

}  // namespace

ModuleSnapshot::ModuleSnapshot(const torch::nn::Module& module) {
  for (const auto& item : module.named_parameters()) {
    const at::Tensor& tensor = item.value();
    entries_.push_back({.tensor = tensor,
                        .device = tensor.device(),
                        .type = tensor.scalar_type(),
                        .requires_grad = tensor.requires_grad(),
                        .sizes_begin = sizes_.size(),
                        .dimensions = tensor.sizes().size()});
    sizes_.insert(sizes_.end(), tensor.sizes().begin(), tensor.sizes().end());
    names_.push_back(item.key());
  }
  renew_buffers(module.buffers());
}

bool ModuleSnapshot::has_buffers(const std::vector<at::Tensor>& now) const {
  return std::ranges::equal(
      now, buffers_, [](const auto& a, const auto& b) { return a.is_same(b); });
}

at::IntArrayRef ModuleSnapshot::sizes_of(const Entry& entry) const {
  return at::IntArrayRef(sizes_).slice(entry.sizes_begin, entry.dimensions);
}

bool ModuleSnapshot::is_unchanged(const Entry& entry, bool frozen) const {
  const at::Tensor& tensor = entry.tensor;
  return (frozen || tensor.requires_grad() == entry.requires_grad) &&
         tensor.sizes() == sizes_of(entry) &&
         tensor.scalar_type() == entry.type && tensor.device() == entry.device;
}

bool ModuleSnapshot::nothing_learns() const {
  return std::ranges::none_of(entries_, [](const Entry& entry) {
    return entry.tensor.requires_grad();
  });
}

// Describes the change of a parameter that still exists.
std::string ModuleSnapshot::change_of(const Entry& entry) const {
  const at::Tensor& tensor = entry.tensor;
  if (tensor.sizes() != sizes_of(entry))
    return c10::str("its shape is ", tensor.sizes(), ", and was ",
                    sizes_of(entry));
  if (tensor.scalar_type() != entry.type)
    return c10::str("its type is ", tensor.scalar_type(), ", and was ",
                    entry.type);
  if (tensor.device() != entry.device)
    return c10::str("it is on ", tensor.device(), ", and was on ",
                    entry.device);
  return entry.requires_grad ? "it no longer requires a gradient"
                             : "it requires a gradient now";
}

// Whether the parameters of `module` and of those in it, in the order of
// parameters(), are the entries from `next` on; moves `next` beyond them.
bool ModuleSnapshot::matches(const torch::nn::Module& module,
                             std::size_t& next) const {
  for (const auto& item : OwnParameters::of(module)) {
    if (!item.value().defined()) continue;
    if (next == entries_.size() || !item.value().is_same(entries_[next].tensor))
      return false;
    ++next;
  }
  return std::ranges::all_of(module.children(), [&](const auto& child) {
    return matches(*child, next);
  });
}

void ModuleSnapshot::check(const torch::nn::Module& module) const {
  std::size_t count = 0;
  if (!matches(module, count) || count != entries_.size())
    refuse_other_parameters(module);
  const bool frozen = nothing_learns();
  for (std::size_t i = 0; i < entries_.size(); ++i)
    if (!is_unchanged(entries_[i], frozen))
      refuse(names_[i], change_of(entries_[i]));
}

void ModuleSnapshot::refuse_other_parameters(
    const torch::nn::Module& module) const {
  const auto now = module.named_parameters();
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    const at::Tensor* tensor = now.find(names_[i]);
    if (tensor == nullptr) refuse(names_[i], "it no longer exists");
    if (!tensor->is_same(entries_[i].tensor))
      refuse(names_[i], "another tensor has replaced it");
  }
  for (const auto& item : now)
    if (std::ranges::find(names_, item.key()) == names_.end())
      refuse(item.key(), "it is new");
  refuse(now.front().key(), "the order of parameters changed");
}

}  // namespace lockstep
