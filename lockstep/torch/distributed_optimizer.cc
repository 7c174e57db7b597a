#include "lockstep/torch/distributed_optimizer.h"

#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/init.h"
#include "lockstep/torch/compress_hook.h"

namespace lockstep {
namespace {

// In the optimizer's order; a parameter that is there twice counts once.
std::vector<NamedParameter> trained_by(
    const torch::optim::Optimizer& optimizer,
    const torch::OrderedDict<std::string, at::Tensor>& names) {
  std::unordered_map<const c10::TensorImpl*, std::string> name_of;
  for (const auto& item : names)
    name_of.emplace(item.value().unsafeGetTensorImpl(), item.key());
  std::vector<NamedParameter> trained;
  std::unordered_set<const c10::TensorImpl*> seen;
  for (const auto& group : optimizer.param_groups())
    for (const at::Tensor& tensor : group.params()) {
      const auto* id = tensor.unsafeGetTensorImpl();
      if (!tensor.requires_grad() || !seen.insert(id).second) continue;
      const auto name = name_of.find(id);
      if (name == name_of.end())
        throw InvalidArgument(
            "DistributedOptimizer: parameter " + std::to_string(seen.size()) +
            " of the optimizer is not among the " +
            std::to_string(names.size()) +
            " named ones\n"
            "  next:    give named_parameters() of the whole model that the "
            "optimizer trains");
      trained.push_back({name->second, tensor});
    }
  return trained;
}

std::size_t trained_count(const torch::optim::Optimizer& optimizer) {
  std::size_t count = 0;
  for (const auto& group : optimizer.param_groups())
    for (const at::Tensor& tensor : group.params())
      if (tensor.requires_grad()) ++count;
  return count;
}

void compress(Reducer& reducer, Compression compression) {
  switch (compression) {
    case Compression::kNone:
      return;
    case Compression::kFp16:
      return reducer.register_comm_hook(fp16_compress_hook());
    case Compression::kBf16:
      return reducer.register_comm_hook(bf16_compress_hook());
  }
}

}  // namespace

StepGradients::StepGradients(
    const torch::optim::Optimizer& optimizer,
    const torch::OrderedDict<std::string, at::Tensor>& names,
    const DistributedOptimizerOptions& options)
    : passes_(trained_by(optimizer, names),
              options.group ? options.group : default_group(),
              {.find_unused_parameters = true, .op = options.op},
              options.backward_passes_per_step),
      parameters_(trained_count(optimizer)) {
  compress(passes_.reducer(), options.compression);
}

void StepGradients::synchronize(const torch::optim::Optimizer& optimizer) {
  if (trained_count(optimizer) != parameters_)
    throw InvalidArgument(
        "DistributedOptimizer: the optimizer trains " +
        std::to_string(trained_count(optimizer)) + " parameters, and " +
        std::to_string(parameters_) +
        " when it was made: gradients of others are not reduced\n"
        "  next:    make a DistributedOptimizer anew after add_param_group() "
        "and after freezing or unfreezing parameters");
  passes_.synchronize();
}

}  // namespace lockstep
