// One pass over a dataset for the replicas of a strategy.
//
// Each global batch is divided evenly: every replica gets every n-th sample of
// the epoch's sequence, which is PyTorch's. So in each step the n replicas
// together see the samples that one replica with n times the batch would see.
//
// Threads: single-threaded; each batch belongs to its replica's thread.
// Errors:  InvalidArgument when a global batch cannot be divided; those of
//          Loader.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/data/loader.h"
#include "lockstep/torch/device_batches.h"
#include "lockstep/torch/per_replica.h"

namespace lockstep {

struct DistributedDatasetOptions {
  // Samples per step of all replicas together.
  std::int64_t global_batch = 64;
  bool shuffle = true;
  // The same on every worker.
  std::uint64_t seed = 0;
  std::uint64_t epoch = 0;
  // Drops a last batch that is smaller.
  bool drop_remainder = false;
  // Pads the last batch to the same size on all replicas with samples from the
  // beginning of the pass, which then occur twice, as PyTorch's sampler does.
  // Without it each sample is in the pass once, as in TensorFlow: the parts of
  // the last batch differ by at most one sample, and a part may have 0. The
  // program then divides the loss by samples().
  bool pad = true;
};

class DistributedDataset {
 public:
  DistributedDataset(const std::vector<ReplicaContext>& replicas,
                     const SampleSource& source,
                     const DistributedDatasetOptions& options);

  // The next global batch, or nothing when the pass is over; every worker gets
  // the same number. Each replica's part is on its device; a GPU may still be
  // copying it, but does so before later work of the current stream. Waits for
  // a batch at most as long as the timeout of the replicas' collectives. After
  // a Timeout the next call resumes there.
  std::optional<PerReplica<BatchTensors>> next();
  std::optional<PerReplica<BatchTensors>> next(Deadline deadline);

  // The number of global batches in the whole pass.
  std::int64_t batch_count() const { return batch_count_; }

  // The number of samples of all replicas together in the global batch that
  // next() returned last, the same on every worker: the `global_batch_size` of
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
