// Saves and resumes a run of `lockstep train`: connects the trainer's parts to
// a CheckpointFolder.
//
// Threads: an object belongs to one thread; every rank of the group makes it
//          and calls its methods at the same point of the program.
// Errors:  InvalidArgument for options that do not fit together and for a
//          checkpoint of another job; see also
//          lockstep/checkpoint/checkpoint.h.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "apps/trainer/loop/gradient_traffic.h"
#include "apps/trainer/loop/strategies.h"
#include "apps/trainer/loop/trainer.h"
#include "apps/trainer/loop/training_step.h"
#include "lockstep/checkpoint/checkpoint.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/torch/logical_shards.h"
#include "src/evaluate/metrics.h"

namespace lockstep {

// The position of a run.
struct RunPosition {
  std::int64_t epoch = 0;
  std::int64_t step = 0;  // steps of this epoch that are done
  Metrics so_far{};       // this rank's, of this epoch
};

// The parts of a run; all must outlive the RunCheckpoints.
struct RunParts {
  RunPosition& position;
  const TrainedReplica& replica;
  TrainingStep& training_step;
  GradientTraffic& traffic;
  std::int64_t steps_per_epoch;
  LogicalShards* shards = nullptr;
};

// InvalidArgument, in the trainer's name, for checkpoint options that cannot
// work.
void check_checkpoint_options(const TrainerOptions& options);

class RunCheckpoints {
 public:
  // `options` and `data` must outlive the object.
  RunCheckpoints(const TrainerOptions& options, const TrainingData& data,
                 const RunParts& parts);

  // Checks that checkpoints can be written, and resumes from one if the options
  // say so; returns its path.
  std::optional<std::filesystem::path> begin();

  // Call it after each step of the optimizer: whether it is time to save().
  bool are_due() const;
  void save();
  // Waits until the last checkpoint is complete; call it when the run ends.
  void finish() { folder_.finish(); }
  // The newest checkpoint of the run, or the one it resumed from, once it is on
  // the disk; empty without one. A collective.
  std::string newest();
  // A sentence about saves that waited for the disk, if any did.
  std::optional<std::string> waits() const;

 private:
  std::optional<std::filesystem::path> restore();
  // A line for a refusal to resume because of other files; else empty.
  std::string why_other_files(std::string_view refusal) const;
  void refuse_not_finite() const;
  void refuse_used_folder() const;
  std::int64_t steps_done() const;

  const TrainerOptions& options_;
  const ImageShape images_;
  const std::string folders_;
  std::shared_ptr<ProcessGroup> group_;
  RunParts parts_;
  CheckpointFolder folder_;
  std::filesystem::path resumed_from_;  // empty in a new run
  // The parts' counters, for state_.
  struct Numbers {
    std::int64_t skipped = 0;
    std::int64_t passes = 0;
    std::int64_t shard_runs = 0;
    at::Tensor metrics;
  } numbers_;
  TrainingState state_;
};

}  // namespace lockstep
