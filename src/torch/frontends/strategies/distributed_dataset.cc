#include <ATen/ops/empty.h>

#include <algorithm>
#include <string>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/data/sample_order.h"
#include "lockstep/torch/strategies.h"
#include "src/data/random_permutation.h"

namespace lockstep::strategies {
namespace {

std::int64_t rounded_up(std::int64_t number, std::int64_t multiple) {
  return (number + multiple - 1) / multiple * multiple;
}

std::vector<std::int64_t> each_sample_once_of(
    const ReplicaContext& replica, std::int64_t size,
    const DistributedDatasetOptions& options) {
  auto samples = each_sample_once(size, replica.num_replicas_in_sync(),
                                  replica.replica_id_in_sync_group());
  if (!options.shuffle) return samples;
  const auto order = random_permutation(size, options.seed + options.epoch);
  for (std::int64_t& sample : samples)
    sample = order[static_cast<std::size_t>(sample)];
  return samples;
}

std::vector<std::int64_t> samples_of(const ReplicaContext& replica,
                                     std::int64_t size,
                                     const DistributedDatasetOptions& options) {
  if (!options.pad && !options.drop_remainder)
    return each_sample_once_of(replica, size, options);
  return sampler_sequence(size, {.world_size = replica.num_replicas_in_sync(),
                                 .rank = replica.replica_id_in_sync_group(),
                                 .shuffle = options.shuffle,
                                 .seed = options.seed,
                                 .epoch = options.epoch,
                                 .drop_last = options.drop_remainder});
}

}  // namespace

DistributedDataset::DistributedDataset(
    const std::vector<ReplicaContext>& replicas, const SampleSource& source,
    const DistributedDatasetOptions& options)
    : global_batch_(options.global_batch),
      shape_(source.shape()),
      timeout_(replicas[0].group->timeout()) {
  const std::int64_t count = replicas[0].num_replicas_in_sync();
  if (global_batch_ < 1 || global_batch_ % count != 0)
    throw InvalidArgument(
        "a global batch of " + std::to_string(global_batch_) +
        " cannot be divided evenly over " + std::to_string(count) +
        " replicas\n  next:    use a multiple of " + std::to_string(count));
  samples_in_pass_ = options.pad && !options.drop_remainder
                         ? rounded_up(source.size(), count)
                         : source.size();
  batch_count_ =
      options.drop_remainder
          ? samples_in_pass_ / global_batch_
          : rounded_up(samples_in_pass_, global_batch_) / global_batch_;
  for (const ReplicaContext& replica : replicas) {
    const DeviceBatches& batches =
        batches_.emplace_back(source, replica.device);
    loaders_.push_back(std::make_unique<Loader>(
        source, samples_of(replica, source.size(), options),
        LoaderOptions{.batch_size = global_batch_ / count,
                      .drop_last = options.drop_remainder,
                      .epoch = options.epoch,
                      .elements = batches.elements()}));
  }
}

std::int64_t DistributedDataset::samples() const {
  if (returned_ == 0) return 0;
  return std::min(global_batch_,
                  samples_in_pass_ - (returned_ - 1) * global_batch_);
}

BatchTensors DistributedDataset::batch_without_samples(
    at::Device device) const {
  const auto [channels, height, width] = shape_;
  const at::TensorOptions options(device);
  return {at::empty({0, channels, height, width}, options.dtype(at::kFloat)),
          at::empty({0}, options.dtype(at::kLong))};
}

std::optional<PerReplica<BatchTensors>> DistributedDataset::next() {
  return next(Deadline(timeout_));
}

std::optional<PerReplica<BatchTensors>> DistributedDataset::next(
    Deadline deadline) {
  if (returned_ == batch_count_) return std::nullopt;
  while (fetched_.size() < loaders_.size()) {
    const std::size_t replica = fetched_.size();
    DeviceBatches& batches = batches_[replica];
    auto batch = loaders_[replica]->next(deadline);
    // A replica without a sample of the last global batch takes part too: it
    // calls the collectives of the step.
    fetched_.push_back(std::make_shared<BatchTensors>(
        batch ? batches.copy(*std::move(batch))
              : batch_without_samples(batches.device())));
  }
  ++returned_;
  return PerReplica<BatchTensors>(std::exchange(fetched_, {}));
}

}  // namespace lockstep::strategies
