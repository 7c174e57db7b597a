#include "lockstep/torch/module_snapshot.h"

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
      "optimizer");
}

}  // namespace

ModuleSnapshot::ModuleSnapshot(const torch::nn::Module& module) {
  for (const auto& item : module.named_parameters())
    entries_.push_back({.name = item.key(),
                        .tensor = item.value(),
                        .requires_grad = item.value().requires_grad(),
                        .type = item.value().scalar_type(),
                        .device = item.value().device(),
                        .sizes = item.value().sizes().vec()});
}

// What has happened to a parameter that is still there; empty if nothing.
std::string ModuleSnapshot::change_of(const Entry& entry) {
  const at::Tensor& tensor = entry.tensor;
  if (tensor.requires_grad() != entry.requires_grad)
    return entry.requires_grad ? "it requires no gradient any more"
                               : "it requires a gradient now, and did not";
  if (tensor.sizes() != entry.sizes)
    return c10::str("its shape is ", tensor.sizes(), ", and was ",
                    at::IntArrayRef(entry.sizes));
  if (tensor.scalar_type() != entry.type)
    return c10::str("its type is ", tensor.scalar_type(), ", and was ",
                    entry.type);
  if (tensor.device() != entry.device)
    return c10::str("it is on ", tensor.device(), ", and was on ",
                    entry.device);
  return {};
}

void ModuleSnapshot::check(const torch::nn::Module& module) const {
  const std::vector<at::Tensor> now = module.parameters();
  bool same = now.size() == entries_.size();
  for (std::size_t i = 0; same && i < now.size(); ++i)
    same = now[i].is_same(entries_[i].tensor);
  if (!same) refuse_other_parameters(module);
  for (const Entry& entry : entries_)
    if (const std::string change = change_of(entry); !change.empty())
      refuse(entry.name, change);
}

void ModuleSnapshot::refuse_other_parameters(
    const torch::nn::Module& module) const {
  const auto now = module.named_parameters();
  for (const Entry& entry : entries_) {
    const at::Tensor* tensor = now.find(entry.name);
    if (tensor == nullptr) refuse(entry.name, "it is there no more");
    if (!tensor->is_same(entry.tensor))
      refuse(entry.name, "another tensor has taken its place");
  }
  for (const auto& item : now)
    if (std::ranges::none_of(entries_, [&](const Entry& entry) {
          return entry.name == item.key();
        }))
      refuse(item.key(), "it was not there");
  refuse(now.front().key(), "parameters come in another order");
}

}  // namespace lockstep
