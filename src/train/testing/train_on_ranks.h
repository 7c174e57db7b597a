// A whole run of training on ranks that are threads.
//
// Threads: one run at a time.
// Errors:  what train() throws on some rank.
#pragma once

#include <memory>
#include <utility>

#include "src/comm/testing/run_ranks.h"
#include "src/train/trainer/trainer.h"

namespace lockstep {

// Trains on `ranks` ranks over shared memory and returns rank 0's result.
inline TrainingResult train_on_ranks(int ranks, const TrainerOptions& options,
                                     const TrainingData& data,
                                     const ProgressSink& progress = {}) {
  TrainingResult result;
  run_ranks("shm", ranks, [&](const std::shared_ptr<ProcessGroup>& group) {
    TrainingResult mine = train(options, data, group, progress);
    if (group->rank() == 0) result = std::move(mine);
  });
  return result;
}

}  // namespace lockstep
