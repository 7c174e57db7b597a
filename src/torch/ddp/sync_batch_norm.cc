#include "lockstep/torch/sync_batch_norm.h"

#include <ATen/ATen.h>
#include <torch/nn/functional/batchnorm.h>

#include <cstdint>
#include <ostream>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/comm/groups.h"
#include "src/torch/ddp/group_normalization.h"

namespace lockstep {

SyncBatchNormImpl::SyncBatchNormImpl(
    const torch::nn::BatchNormOptions& batch_options,
    std::shared_ptr<ProcessGroup> group)
    : options(batch_options),
      statistics_(BatchStatistics::kOfGroup),
      group_(std::move(group)) {
  SyncBatchNormImpl::reset();
}

SyncBatchNormImpl::SyncBatchNormImpl(
    const torch::nn::BatchNormOptions& batch_options,
    BatchStatistics statistics)
    : options(batch_options), statistics_(statistics) {
  SyncBatchNormImpl::reset();
}

SyncBatchNormImpl::SyncBatchNormImpl(
    const torch::nn::BatchNormOptions& batch_options,
    const BatchNormTensors& tensors, std::shared_ptr<ProcessGroup> group)
    : options(batch_options),
      statistics_(BatchStatistics::kOfGroup),
      group_(std::move(group)) {
  hold(tensors);
}

void SyncBatchNormImpl::reset() {
  const std::int64_t features = options.num_features();
  BatchNormTensors tensors;
  if (options.affine()) {
    tensors.weight = torch::ones({features}).requires_grad_();
    tensors.bias = torch::zeros({features}).requires_grad_();
  }
  if (options.track_running_stats()) {
    tensors.running_mean = torch::zeros({features});
    tensors.running_var = torch::ones({features});
    tensors.num_batches_tracked = torch::zeros({}, torch::kLong);
  }
  hold(tensors);
}

// Registers undefined tensors too: a clone must have the same number.
void SyncBatchNormImpl::hold(const BatchNormTensors& tensors) {
  const auto trained = [](const at::Tensor& tensor) {
    return tensor.defined() && tensor.requires_grad();
  };
  weight =
      register_parameter("weight", tensors.weight, trained(tensors.weight));
  bias = register_parameter("bias", tensors.bias, trained(tensors.bias));
  running_mean = register_buffer("running_mean", tensors.running_mean);
  running_var = register_buffer("running_var", tensors.running_var);
  num_batches_tracked =
      register_buffer("num_batches_tracked", tensors.num_batches_tracked);
}

void SyncBatchNormImpl::synchronize(std::shared_ptr<ProcessGroup> group) {
  statistics_ = BatchStatistics::kOfGroup;
  group_ = std::move(group);
}

void SyncBatchNormImpl::check(const at::Tensor& input) const {
  if (input.dim() >= 2 && input.dim() <= 5 &&
      input.size(1) == options.num_features() && input.size(1) > 0 &&
      input.is_floating_point())
    return;
  throw InvalidArgument(c10::str(
      "batch normalization of ", options.num_features(),
      " features got an input of shape ", input.sizes(), " and type ",
      input.scalar_type(),
      "\n  next:    give it floating-point samples x features, with up to "
      "three more dimensions"));
}

// As LibTorch's layers do it.
double SyncBatchNormImpl::count_batch() {
  const double momentum = options.momentum().value_or(0);
  if (!is_training() || !num_batches_tracked.defined()) return momentum;
  num_batches_tracked += 1;
  if (options.momentum()) return momentum;
  return 1 / num_batches_tracked.item<double>();
}

bool SyncBatchNormImpl::synchronizes_now() {
  if (!is_training() || statistics_ == BatchStatistics::kOfRank) return false;
  if (!group_) group_ = default_group();
  return group_->size() > 1;
}

at::Tensor SyncBatchNormImpl::forward(const at::Tensor& input) {
  check(input);
  const double momentum = count_batch();
  if (synchronizes_now()) return synchronized(input, momentum);
  return torch::nn::functional::detail::batch_norm(
      input, running_mean, running_var, weight, bias,
      is_training() || !options.track_running_stats(), momentum, options.eps());
}

at::Tensor SyncBatchNormImpl::synchronized(const at::Tensor& input,
                                           double momentum) {
  const GroupMoments moments = gather_moments(*group_, input);
  if (running_mean.defined()) {
    const at::NoGradGuard no_grad;
    const double unbiased = moments.count / (moments.count - 1);
    running_mean.mul_(1 - momentum).add_(moments.mean * momentum);
    running_var.mul_(1 - momentum)
        .add_(moments.variance * (momentum * unbiased));
  }
  return normalize(input, {.weight = weight, .bias = bias}, moments,
                   {.group = group_, .eps = options.eps()});
}

void SyncBatchNormImpl::pretty_print(std::ostream& stream) const {
  stream << std::boolalpha
         << (statistics_ == BatchStatistics::kOfRank
                 ? "lockstep::BatchNorm("
                 : "lockstep::SyncBatchNorm(")
         << options.num_features() << ", eps=" << options.eps()
         << ", momentum=";
  if (options.momentum())
    stream << *options.momentum();
  else
    stream << "None";
  stream << ", affine=" << options.affine()
         << ", track_running_stats=" << options.track_running_stats() << ')';
}

void abort_groups_of_batch_norms(const torch::nn::Module& module,
                                 const std::string& reason) noexcept {
  const torch::nn::Module::ConstModuleApplyFunction abort =
      [&](const torch::nn::Module& layer) {
        const auto* norm = dynamic_cast<const SyncBatchNormImpl*>(&layer);
        if (norm != nullptr && norm->group()) norm->group()->abort(reason);
      };
  module.apply(abort);
}

}  // namespace lockstep
