#include "lockstep/torch/strategy.h"

#include <c10/core/DeviceGuard.h>
#include <c10/core/GradMode.h>

#include <string>

#include "lockstep/base/error.h"
#include "lockstep/base/tf_config.h"
#include "lockstep/comm/init.h"
#include "lockstep/torch/replica_devices.h"
#include "lockstep/torch/replicate.h"
#include "lockstep/torch/tensor_collectives.h"
#include "lockstep/torch/tensor_memory.h"

namespace lockstep {
namespace {

void check_against(const ProcessGroup& group, const TfConfig& config) {
  if (group.rank() == config.rank && group.size() == config.world_size) return;
  throw InvalidArgument(
      "TF_CONFIG makes this process rank " + std::to_string(config.rank) +
      " of " + std::to_string(config.world_size) +
      ", but its process group was made with rank " +
      std::to_string(group.rank()) + " of " + std::to_string(group.size()) +
      "\n  next:    unset TF_CONFIG, or leave init_process_group() to the "
      "strategy");
}

}  // namespace

void strategy_internal::move_to_gpu(torch::nn::Module* module,
                                    at::Device device) {
  if (module != nullptr && !device.is_cpu()) module->to(device);
}

void strategy_internal::average_buffers(
    ProcessGroup& group, const std::vector<at::Tensor>& buffers) {
  std::vector<at::Tensor> averaged, copied;
  for (const at::Tensor& buffer : buffers)
    (buffer.is_floating_point() ? averaged : copied).push_back(buffer);
  average_tensors(group, averaged);
  broadcast_tensors(group, copied, 0);
}

std::shared_ptr<ProcessGroup> group_of_workers(
    std::optional<std::chrono::nanoseconds> timeout) {
  const auto config = read_tf_config();
  if (is_initialized()) {
    if (config) check_against(*default_group(), *config);
    return default_group();
  }
  if (!config) return init_process_group({.timeout = timeout});
  return init_process_group({.init_method = "tcp://" + config->first_address,
                             .world_size = config->world_size,
                             .rank = config->rank,
                             .timeout = timeout});
}

Strategy::Strategy(std::vector<at::Device> devices, Variables variables,
                   std::optional<std::chrono::nanoseconds> timeout)
    : variables_(variables),
      threads_(std::make_unique<ReplicaThreads>(
          replica_devices(std::move(devices)), timeout)),
      contexts_(threads_->contexts()) {}

Strategy::Strategy(std::shared_ptr<ProcessGroup> group, at::Device device)
    : contexts_{{.local_replica = 0,
                 .device = replica_devices({device}).front(),
                 .group = std::move(group)}} {}

MultiWorkerMirroredStrategy::MultiWorkerMirroredStrategy(
    const MultiWorkerStrategyOptions& options)
    : Strategy(group_of_workers(options.timeout), options.device) {}

void Strategy::run_on_each(
    const std::function<void(const ReplicaContext&)>& body) {
  if (threads_) return threads_->run(body);
  run_or_abort(contexts_[0], [&](const ReplicaContext& here) {
    c10::OptionalDeviceGuard guard;
    if (!here.device.is_cpu()) guard.reset_device(here.device);
    body(here);
  });
}

void Strategy::centralize(
    const std::vector<std::vector<at::Tensor>>& parameters) const {
  if (variables_ != Variables::kCentral || !contexts_[0].device.is_cpu())
    return;
  const c10::NoGradGuard no_grad;
  for (std::size_t i = 1; i < parameters.size(); ++i)
    for (std::size_t j = 0; j < parameters[i].size(); ++j)
      make_alias(parameters[i][j], parameters[0][j]);
}

at::Tensor Strategy::reduce(ReduceOp op,
                            const PerReplica<at::Tensor>& values) const {
  if (op != ReduceOp::kSum && op != ReduceOp::kAverage)
    throw InvalidArgument(
        "Strategy::reduce: values are added up or averaged, nothing else\n"
        "  next:    use ReduceOp::kSum or ReduceOp::kAverage");
  if (op == ReduceOp::kAverage && !values.local().is_floating_point())
    throw InvalidArgument(
        "Strategy::reduce: whole numbers have no average of their type\n"
        "  next:    convert them to a floating-point type first");
  const c10::NoGradGuard no_grad;
  at::Tensor sum = values.local(0).detach().clone();
  for (std::size_t i = 1; i < values.size(); ++i)
    sum += values.local(static_cast<int>(i)).to(sum.device());
  const auto& group = contexts_[0].group;
  if (!threads_) all_reduce(*group, sum, ReduceOp::kSum).wait();
  if (op == ReduceOp::kAverage) sum /= num_replicas_in_sync();
  return sum;
}

at::Tensor Strategy::compute_average_loss(
    const at::Tensor& losses,
    std::optional<std::int64_t> global_batch_size) const {
  if (losses.dim() == 0 && !global_batch_size)
    throw InvalidArgument(
        "compute_average_loss: one loss of a batch does not say how many "
        "samples it is of\n"
        "  next:    give losses, one a sample (at::Reduction::None), or the "
        "size of the global batch");
  const std::int64_t samples = global_batch_size
                                   ? *global_batch_size
                                   : losses.size(0) * num_replicas_in_sync();
  if (samples < 1)
    throw InvalidArgument(
        "compute_average_loss: a global batch of " + std::to_string(samples) +
        " samples has no average\n"
        "  next:    give losses, one a sample, or the size of the global "
        "batch");
  return losses.sum() / samples;
}

}  // namespace lockstep
