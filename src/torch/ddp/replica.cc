#include "src/torch/ddp/replica.h"

#include <c10/core/GradMode.h>

#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/comm/groups.h"
#include "lockstep/torch/sync_batch_norm.h"
#include "src/torch/ddp/replicate.h"
#include "src/torch/tensor/module_tensors.h"

namespace lockstep {
namespace {

std::vector<NamedParameter> trained_parameters(
    const torch::nn::Module& module) {
  std::vector<NamedParameter> parameters;
  for (const auto& item : distinct_named_parameters(module))
    if (item.value().requires_grad())
      parameters.push_back({item.key(), item.value()});
  return parameters;
}

// Every rank refuses the same irreducible parameters, since all have agreed on
// names, types and requires_grad.
std::vector<NamedParameter> agreed_parameters(const torch::nn::Module* module,
                                              ProcessGroup& group) {
  if (module == nullptr)
    throw InvalidArgument(
        "DistributedDataParallel: the pointer or holder of the module is "
        "empty");
  check_same_model(group, *module);
  check_one_device(*module);
  check_dense(*module);
  return trained_parameters(*module);
}

ReducerOptions reducer_options(const DistributedDataParallelOptions& options) {
  return {.first_bucket_bytes = options.first_bucket_bytes,
          .bucket_bytes = options.bucket_bytes,
          .find_unused_parameters = options.find_unused_parameters,
          .static_graph = options.static_graph,
          .gradient_as_bucket_view = options.gradient_as_bucket_view,
          .average_gradients = options.average_gradients,
          .reduce_alone = options.reduce_alone,
          .sparse_as_dense = options.sparse_as_dense,
          .op = options.op};
}

// One that exchanges statistics with other ranks.
bool has_sync_batch_norm(const torch::nn::Module& module) {
  bool has = false;
  const torch::nn::Module::ConstModuleApplyFunction look =
      [&](const torch::nn::Module& layer) {
        const auto* norm = dynamic_cast<const SyncBatchNormImpl*>(&layer);
        if (norm == nullptr || norm->statistics() != BatchStatistics::kOfGroup)
          return;
        const auto group = norm->group() ? norm->group() : default_group();
        has |= group->size() > 1;
      };
  module.apply(look);
  return has;
}

}  // namespace

Replica::Replica(std::shared_ptr<torch::nn::Module> module,
                 const DistributedDataParallelOptions& options)
    : module_(std::move(module)),
      group_(options.group ? options.group : default_group()),
      reducer_(Reducer::make(agreed_parameters(module_.get(), *group_), group_,
                             reducer_options(options))),
      broadcasts_buffers_(options.broadcast_buffers),
      wrapped_(*module_),
      watch_(std::make_shared<ReplicaWatch>(
          options.compare_replicas_every, group_,
          [wrapped = module_] { return wrapped->named_parameters().pairs(); })),
      averages_(options.average_gradients),
      communicates_(group_->size() > 1 || options.reduce_alone) {
  broadcast_tensors(*group_, parameters_and_buffers(*module_), 0);
  reducer_->when_aborted([wrapped = module_](const std::string& reason) {
    abort_groups_of_batch_norms(*wrapped, reason);
  });
  reducer_->compare_replicas_by(watch_);
}

void Replica::before_forward() {
  if (!communicates_ || !c10::GradMode::is_enabled()) return;
  wrapped_.check(*module_);
  if (reducer_->forward_begins() == PassKind::kLocal) return;
  if (!broadcasts_buffers_ || !module_->is_training()) return;
  exchange_buffers();
  if (reducer_->compares_next_pass())
    watch_->buffers_are_equal(module_->named_buffers().pairs());
}

void Replica::watch_output(const at::Tensor& output) {
  if (communicates_) reducer_->watch_output(output);
}

void Replica::broadcast_buffers() {
  if (!communicates_) return;
  wrapped_.check(*module_);
  exchange_buffers();
}

void Replica::exchange_buffers() {
  if (wrapped_.buffers().empty() && module_->buffers().empty()) return;
  const Participation roll =
      join_coordinator_ ? join_coordinator_->announce(Activity::kForward)
                        : full_participation(*group_, Activity::kForward);
  take_buffers_of(roll.root);
}

// Ranks that run the same program change their buffers in the same pass. If one
// rank changes its own alone, its check meets the others' broadcast, a
// Mismatch; or the gradients of ranks that have no buffer, a Timeout.
void Replica::take_buffers_of(int root) {
  std::vector<at::Tensor> now = module_->buffers();
  if (!wrapped_.has_buffers(now)) {
    check_same_model(*group_, *module_);
    wrapped_.renew_buffers(std::move(now));
  }
  broadcast_even_alone(*group_, wrapped_.buffers(), root);
}

void Replica::register_comm_hook(std::shared_ptr<CommHook> hook) {
  if (!averages_)
    throw InvalidArgument(
        "register_comm_hook: an optimizer averages the gradients, so a hook "
        "would never be called"
        "\n  next:    leave average_gradients at true");
  reducer_->register_comm_hook(std::move(hook));
}

void Replica::begin_join(const JoinOptions& options) {
  if (!averages_)
    throw InvalidArgument(
        "join() cannot stand in for ranks without data if an optimizer "
        "averages the gradients"
        "\n  next:    leave average_gradients at true for uneven inputs");
  if (join_coordinator_)
    throw InvalidArgument("join() within join(): one scope is enough");
  if (has_sync_batch_norm(*module_))
    throw InvalidArgument(
        "join() cannot stand in for a rank without data in the statistics that "
        "SyncBatchNorm exchanges"
        "\n  next:    leave join() out, and give such a rank empty batches");
  join_coordinator_ = std::make_shared<JoinCoordinator>(
      group_,
      JoinCoordinatorOptions{
          .divide_by_initial_world_size = options.divide_by_initial_world_size,
          .throw_on_early_termination = options.throw_on_early_termination});
  reducer_->set_join_coordinator(join_coordinator_);
}

void Replica::shadow_the_others() {
  while (true) {
    const Participation roll =
        join_coordinator_->announce(Activity::kOutOfData);
    if (roll.active == 0) break;
    if (roll.activity == Activity::kForward)
      take_buffers_of(roll.root);
    else
      reducer_->shadow_pass(roll);
  }
  broadcast_tensors(*group_,
                    broadcasts_buffers_ ? parameters_and_buffers(*module_)
                                        : distinct_parameters(*module_),
                    join_coordinator_->last_with_data().root);
}

void Replica::end_join() noexcept {
  reducer_->set_join_coordinator(nullptr);
  join_coordinator_.reset();
}

}  // namespace lockstep
