#include "lockstep/torch/distributed_dataset.h"

#include <string>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/data/sampler_sequence.h"

namespace lockstep {

DistributedDataset::DistributedDataset(
    const std::vector<ReplicaContext>& replicas, const SampleSource& source,
    const DistributedDatasetOptions& options)
    : timeout_(replicas[0].group->timeout()) {
  const int count = replicas[0].num_replicas_in_sync();
  if (options.global_batch < 1 || options.global_batch % count != 0)
    throw InvalidArgument(
        "a global batch of " + std::to_string(options.global_batch) +
        " cannot be divided evenly over " + std::to_string(count) +
        " replicas\n  next:    use a multiple of " + std::to_string(count));
  for (const ReplicaContext& replica : replicas) {
    const DeviceBatches& batches =
        batches_.emplace_back(source, replica.device);
    loaders_.push_back(std::make_unique<Loader>(
        source,
        sampler_sequence(source.size(),
                         {.world_size = count,
                          .rank = replica.replica_id_in_sync_group(),
                          .shuffle = options.shuffle,
                          .seed = options.seed,
                          .epoch = options.epoch,
                          .drop_last = options.drop_remainder}),
        LoaderOptions{.batch_size = options.global_batch / count,
                      .drop_last = options.drop_remainder,
                      .epoch = options.epoch,
                      .elements = batches.elements()}));
  }
}

std::optional<PerReplica<BatchTensors>> DistributedDataset::next() {
  return next(Deadline(timeout_));
}

std::optional<PerReplica<BatchTensors>> DistributedDataset::next(
    Deadline deadline) {
  while (fetched_.size() < loaders_.size()) {
    const std::size_t replica = fetched_.size();
    auto batch = loaders_[replica]->next(deadline);
    if (!batch) return std::nullopt;
    fetched_.push_back(std::make_shared<BatchTensors>(
        batches_[replica].copy(*std::move(batch))));
  }
  return PerReplica<BatchTensors>(std::exchange(fetched_, {}));
}

}  // namespace lockstep
