// Only a step of a Sequential can be replaced from outside: it is an AnyModule,
// and also registered as a child. Any other holder of the layer would keep
// calling the old one; the number of owners reveals such a holder.
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>

#include <numeric>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/groups.h"
#include "lockstep/torch/sync_batch_norm.h"
#include "src/comm/group/group_core.h"

namespace lockstep {
namespace {

using torch::nn::AnyModule;
using torch::nn::Module;
using torch::nn::SequentialImpl;

// A batch normalization layer of LibTorch's, of any of the three classes.
struct Layer {
  torch::nn::BatchNormOptions options;
  BatchNormTensors tensors;
};

template <class Impl>
std::optional<Layer> layer_if(const Module& module) {
  const auto* norm = dynamic_cast<const Impl*>(&module);
  if (norm == nullptr) return std::nullopt;
  return Layer{norm->options,
               {norm->weight, norm->bias, norm->running_mean, norm->running_var,
                norm->num_batches_tracked}};
}

std::optional<Layer> layer_of(const Module& module) {
  if (auto layer = layer_if<torch::nn::BatchNorm1dImpl>(module)) return layer;
  if (auto layer = layer_if<torch::nn::BatchNorm2dImpl>(module)) return layer;
  return layer_if<torch::nn::BatchNorm3dImpl>(module);
}

// A step of a Sequential has two owners: the step itself, and the child.
constexpr long kOwnersOfAStep = 2;

struct Step {
  SequentialImpl* sequential;
  std::string name;  // among its children
  AnyModule* place;
};

// The layers to convert, and those that cannot be converted. A module that is
// registered in several places counts once.
struct Inventory {
  std::unordered_set<const Module*> seen;
  std::vector<SyncBatchNormImpl*> ours;
  std::vector<Step> steps;
  std::vector<std::string> held_elsewhere;
};

void take_stock_of_steps(SequentialImpl& sequential, const std::string& prefix,
                         Inventory& inventory) {
  const std::vector<std::string> names = sequential.named_children().keys();
  std::size_t index = 0;
  for (AnyModule& place : sequential) {
    const std::string& name = names[index++];
    const auto step = place.ptr();
    if (!layer_of(*step)) continue;
    if (step.use_count() - 1 > kOwnersOfAStep)
      inventory.held_elsewhere.push_back(prefix + name +
                                         ", which another object holds too");
    else
      inventory.steps.push_back({&sequential, name, &place});
  }
}

void take_stock(Module& module, const std::string& prefix,
                Inventory& inventory) {
  if (!inventory.seen.insert(&module).second) return;
  if (auto* ours = dynamic_cast<SyncBatchNormImpl*>(&module))
    inventory.ours.push_back(ours);
  auto* sequential = dynamic_cast<SequentialImpl*>(&module);
  if (sequential != nullptr)
    take_stock_of_steps(*sequential, prefix, inventory);
  for (const auto& child : module.named_children()) {
    if (sequential == nullptr && layer_of(*child.value()))
      inventory.held_elsewhere.push_back(prefix + child.key() + " of " +
                                         module.name());
    take_stock(*child.value(), prefix + child.key() + ".", inventory);
  }
}

void check(const Inventory& inventory) {
  if (inventory.held_elsewhere.empty()) return;
  std::string names;
  for (const std::string& name : inventory.held_elsewhere)
    names += "\n  layer:   " + name;
  throw InvalidArgument(
      "convert_sync_batch_norm: a BatchNorm of LibTorch's can be replaced "
      "only in a Sequential" +
      names +
      "\n  likely:  it is a member, whose holder would keep calling it"
      "\n  next:    declare it as lockstep::BatchNorm, which takes the same "
      "options");
}

void replace(const Step& step, const std::shared_ptr<ProcessGroup>& group) {
  const auto old = step.place->ptr();
  const Layer layer = *layer_of(*old);
  const auto norm =
      std::make_shared<SyncBatchNormImpl>(layer.options, layer.tensors, group);
  norm->train(old->is_training());
  *step.place = AnyModule(norm);
  step.sequential->replace_module(step.name, norm);
}

std::shared_ptr<ProcessGroup> group_of_its_own(
    const std::shared_ptr<ProcessGroup>& group) {
  if (group->size() == 1 || !group->core().world()) return group;
  std::vector<int> ranks(static_cast<std::size_t>(group->size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return new_group(*group, ranks);
}

}  // namespace

int convert_sync_batch_norm(Module& module,
                            std::shared_ptr<ProcessGroup> group) {
  Inventory inventory;
  if (layer_of(module)) inventory.held_elsewhere.push_back("the module itself");
  take_stock(module, "", inventory);
  check(inventory);
  const auto count = inventory.ours.size() + inventory.steps.size();
  if (count == 0) return 0;
  const auto own = group_of_its_own(group ? group : default_group());
  for (SyncBatchNormImpl* ours : inventory.ours) ours->synchronize(own);
  for (const Step& step : inventory.steps) replace(step, own);
  return static_cast<int>(count);
}

}  // namespace lockstep
