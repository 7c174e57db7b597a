// A whole run of training on ranks that are threads.
//
// Threads: one run at a time.
// Errors:  what train() throws on some rank.
#pragma once

#include <memory>
#include <utility>

#include "apps/trainer/loop/trainer.h"
#include "src/comm/testing/run_ranks.h"

namespace lockstep {

// `splits` must live until the call returns.
inline TrainingResult train(const TrainerOptions& options,
                            const DatasetSplits& splits,
                            const std::shared_ptr<ProcessGroup>& group,
                            const ProgressSink& progress = {}) {
  const std::shared_ptr<const DatasetSplits> borrowed(
      std::shared_ptr<const void>(), &splits);
  return train(options, training_data_of(borrowed, options), group, progress);
}

// Trains on `ranks` ranks over shared memory and returns rank 0's result.
inline TrainingResult train_on_ranks(int ranks, const TrainerOptions& options,
                                     const DatasetSplits& data,
                                     const ProgressSink& progress = {}) {
  TrainingResult result;
  run_ranks("shm", ranks, [&](const std::shared_ptr<ProcessGroup>& group) {
    TrainingResult mine = train(options, data, group, progress);
    if (group->rank() == 0) result = std::move(mine);
  });
  return result;
}

}  // namespace lockstep
