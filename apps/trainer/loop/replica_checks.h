// A training run's checks that its replicas stay equal: a table of the first
// steps, and a fingerprint every N steps.
//
// Threads: an object belongs to one thread at a time; every rank of the model's
//          group makes the same calls.
// Errors:  InvalidArgument for invalid numbers and names; Mismatch on every
//          rank when replicas differ; those of collectives.
#pragma once

#include <cstdint>
#include <optional>

#include "apps/options/training_options.h"
#include "apps/trainer/model/models.h"
#include "lockstep/torch/consistency.h"
#include "lockstep/torch/distributed_data_parallel.h"

namespace lockstep {

class ReplicaChecks {
 public:
  // Reads the present weights, so make it after loading a checkpoint.
  // `optimizer_averages`: .grad is not averaged after backward(). `steps_done`:
  // steps that the run has made before.
  ReplicaChecks(const ReplicaChecksOptions& options,
                const DistributedDataParallel<Classifier>& model,
                bool optimizer_averages, std::int64_t steps_done = 0);

  // The report that takes each step's tensors; null without a table.
  ConsistencyReport* report() { return report_ ? &*report_ : nullptr; }

  // Call it after each step of the optimizer.
  void step_done();

 private:
  void print_table();

  ReplicaChecksOptions options_;
  bool prints_;  // on this rank
  std::optional<ConsistencyReport> report_;
  std::optional<RunningFingerprint> fingerprint_;
};

}  // namespace lockstep
