// What a training run does to see that its replicas stay the same: a table of
// the first steps, and a fingerprint now and then.
//
// Threads: belongs to one thread at a time; every rank of the model's group
//          does the same with its own.
// Errors:  InvalidArgument for numbers and names that cannot work; Mismatch on
//          every rank when replicas are not the same; what collectives throw.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/torch/consistency_report.h"
#include "lockstep/torch/distributed_data_parallel.h"
#include "lockstep/torch/running_fingerprint.h"
#include "lockstep/train/models.h"

namespace lockstep {

struct ReplicaChecksOptions {
  // How many first steps are looked at; none when 0.
  int consistency_steps = 0;
  // Parameters whose values the table shows.
  std::vector<std::string> show{};
  // Steps from one comparison of all weights to the next; none when 0.
  std::int64_t fingerprint_every = 0;
  // Takes the tables, on rank 0; may be empty.
  std::function<void(const std::string&)> print{};

  bool any() const { return consistency_steps > 0 || fingerprint_every > 0; }
};

class ReplicaChecks {
 public:
  // Looks at the weights as they are now: after those of a checkpoint are
  // loaded. `optimizer_averages`: .grad is no average after backward().
  // `steps_done` of the run were made before.
  ReplicaChecks(const ReplicaChecksOptions& options,
                const DistributedDataParallel<Classifier>& model,
                bool optimizer_averages, std::int64_t steps_done = 0);

  // Where there is a table to fill: who is to be told of each step's parts.
  ConsistencyReport* report() { return report_ ? &*report_ : nullptr; }

  // After each step of the optimizer.
  void step_done();

 private:
  void print_table();

  ReplicaChecksOptions options_;
  bool prints_;  // on this rank
  std::optional<ConsistencyReport> report_;
  std::optional<RunningFingerprint> fingerprint_;
};

}  // namespace lockstep
