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
  // Leaves out a last batch that is smaller; else it is, on all replicas alike,
  // with samples of the beginning where they do not divide evenly.
  bool drop_remainder = false;
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
  std::int64_t batch_count() const { return loaders_[0]->batch_count(); }

 private:
  std::vector<DeviceBatches> batches_;  // by local replica
  std::chrono::nanoseconds timeout_;
  std::vector<std::shared_ptr<BatchTensors>> fetched_;  // of the next one
  std::vector<std::unique_ptr<Loader>> loaders_;        // by local replica
};

}  // namespace lockstep
