#include "lockstep/torch/replica.h"

#include <c10/core/GradMode.h>

#include <unordered_set>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/comm/init.h"
#include "lockstep/torch/replicate.h"

namespace lockstep {
namespace {

// A tensor that is registered under several names, as tied weights are, counts
// once, under the first.
std::vector<NamedParameter> trained_parameters(
    const torch::nn::Module& module) {
  std::vector<NamedParameter> parameters;
  std::unordered_set<const c10::TensorImpl*> seen;
  for (const auto& item : module.named_parameters())
    if (item.value().requires_grad() &&
        seen.insert(item.value().unsafeGetTensorImpl()).second)
      parameters.push_back({item.key(), item.value()});
  return parameters;
}

std::vector<at::Tensor> parameters_and_buffers(
    const torch::nn::Module& module) {
  std::vector<at::Tensor> tensors = module.parameters();
  for (const at::Tensor& buffer : module.buffers()) tensors.push_back(buffer);
  return tensors;
}

// What cannot be reduced is refused on every rank alike, since all have agreed
// on names, types and what requires a gradient.
std::vector<NamedParameter> agreed_parameters(const torch::nn::Module* module,
                                              ProcessGroup& group) {
  if (module == nullptr)
    throw InvalidArgument(
        "DistributedDataParallel: there is no module in the pointer or holder");
  check_same_model(group, *module);
  return trained_parameters(*module);
}

}  // namespace

Replica::Replica(std::shared_ptr<const torch::nn::Module> module,
                 const DistributedDataParallelOptions& options)
    : module_(std::move(module)),
      group_(options.group ? options.group : default_group()),
      reducer_(agreed_parameters(module_.get(), *group_), group_,
               {.first_bucket_bytes = options.first_bucket_bytes,
                .bucket_bytes = options.bucket_bytes}) {
  broadcast_tensors(*group_, parameters_and_buffers(*module_), 0);
  if (options.broadcast_buffers && group_->size() > 1)
    buffers_ = module_->buffers();
}

void Replica::before_forward() {
  if (buffers_.empty() || !module_->is_training() ||
      !c10::GradMode::is_enabled())
    return;
  broadcast_tensors(*group_, buffers_, 0);
}

}  // namespace lockstep
