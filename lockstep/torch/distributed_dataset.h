// One pass over a dataset for the replicas of a strategy.
//
// Each global batch is divided evenly: every replica gets every n-th sample of
// the epoch's sequence, which is PyTorch's, so that all replicas together see
// in each step what one of n times the batch would see.
//
// Threads: single-threaded; the batches are the replicas'.
// Errors:  InvalidArgument when a global batch cannot be divided; what Loader
//          throws.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/data/loader.h"
#include "lockstep/data/sample_source.h"
#include "lockstep/torch/batch_tensors.h"
#include "lockstep/torch/device_batches.h"
#include "lockstep/torch/per_replica.h"

namespace lockstep {

struct DistributedDatasetOptions {
  // Samples in a step of all replicas together.
  std::int64_t global_batch = 64;
  bool shuffle = true;
  // The same on every worker.
  std::uint64_t seed = 0;
  std::uint64_t epoch = 0;
  // Leaves out a last batch that is smaller.
  bool drop_remainder = false;
  // Lets the last batch be as large on all replicas, by samples of the
  // beginning of the pass, which are seen twice, as PyTorch's sampler does.
  // Without it each sample is in the pass once, as in TensorFlow: the parts of
  // the last batch differ by at most one sample, and a part may have 0. A loss
  // is then divided by samples().
  bool pad = true;
};

class DistributedDataset {
 public:
  DistributedDataset(const std::vector<ReplicaContext>& replicas,
                     const SampleSource& source,
                     const DistributedDatasetOptions& options);

  // The next global batch, or nothing when the pass is over; as many of them on
  // every worker. Each replica's part is on its device; a GPU may still be
  // copying it, before what the current stream is given from now on. Waits for
  // a batch as long as a collective of the replicas may take. After a Timeout
  // it goes on where it was.
  std::optional<PerReplica<BatchTensors>> next();
  std::optional<PerReplica<BatchTensors>> next(Deadline deadline);

  // How many global batches the whole pass has.
  std::int64_t batch_count() const { return batch_count_; }

  // How many samples all replicas together have in the global batch that next()
  // returned last, the same number on every worker: the `global_batch_size` of
  // Strategy::compute_average_loss(). 0 before the first.
  std::int64_t samples() const;

 private:
  BatchTensors batch_without_samples(at::Device device) const;

  std::int64_t global_batch_;
  std::int64_t samples_in_pass_;  // of all replicas, repeated ones included
  std::int64_t batch_count_;
  std::int64_t returned_ = 0;  // global batches
  ImageShape shape_;
  std::vector<DeviceBatches> batches_;  // by local replica
  std::chrono::nanoseconds timeout_;
  std::vector<std::shared_ptr<BatchTensors>> fetched_;  // of the next one
  std::vector<std::unique_ptr<Loader>> loaders_;        // by local replica
};

}  // namespace lockstep
