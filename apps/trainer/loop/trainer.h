// Trains an image classifier on the ranks of a group: the job behind
// `lockstep train`.
//
// Every process can read the whole data set; each rank trains on its share of
// each global batch, so that a run on 1, 2, 4 or 8 ranks takes the
// same steps. Ranks are processes under DistributedDataParallel, or as
// `options.strategy` says: see apps/trainer/loop/strategies.h. After an epoch
// the test set, divided over the ranks, is evaluated. At the end rank 0 saves
// the model while the others wait. A run with a folder of checkpoints saves
// itself there on SIGTERM, after its step, and ends.
//
// Options, data and the numbers of ranks and compute threads determine a run:
// repeated, it gives the same weights bit for bit, also when it is stopped and
// resumed. With logical shards the number of ranks does not matter.
//
// Threads: every process of the group calls train(), each with its own options
//          that are equal to the others'. Rank 0's thread calls `progress`.
// Errors:  DifferentJobs (src/comm/group/same_job.h) where the processes'
//          options or data differ: see apps/trainer/loop/run_description.h.
//          InvalidArgument for options and data that do not fit together, on
//          every rank, before any computation; an output that cannot be written
//          and test images that cannot be read fail then too. Error on every
//          rank where the run diverges: see apps/trainer/loop/nan_check.h.
//          Where the last evaluation fails, the model is saved. Mismatch on
//          every rank when a requested check finds replicas that differ.
//          SystemError (ENOMEM) where a GPU has no room for the run, see
//          lockstep/torch/gpu_pass.h. Those of collectives.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/options/training_options.h"
#include "apps/trainer/loop/training_data.h"
#include "apps/trainer/model/models.h"
#include "lockstep/comm/process_group.h"
#include "src/base/progress_record.h"
#include "src/evaluate/metrics.h"

namespace lockstep {

struct TrainingResult {
  Metrics train;  // of the last epoch, while its weights changed
  Metrics test;   // of the final weights
  // Steps whose gradients were not finite: in float16, and with on_nan skip.
  std::int64_t skipped_steps = 0;
  std::chrono::duration<double> duration{};
  std::optional<std::string> compression{};  // of gradients, as a sentence
  // Of steps that waited for images, as a sentence, where that took much time.
  std::optional<std::string> loader_waits{};
  // Of training images that could not be read and were replaced, and of test
  // images that were left out, as sentences.
  std::vector<std::string> broken_images{};
  // Of saves that waited for the disk, as a sentence.
  std::optional<std::string> checkpoint_waits{};
  std::optional<std::filesystem::path> resumed_from{};
  // Steps that were done when the run was asked to stop and saved itself in its
  // folder of checkpoints; the model is not the trained one.
  std::optional<std::int64_t> stopped_after{};
  // Layers for which the file of weights had none; empty without a file.
  std::optional<std::vector<std::string>> layers_begun_anew{};
  std::shared_ptr<Classifier> model;
};

// Takes the records of a run: one start, then steps and epochs. The caller
// reports the end.
using ProgressSink = std::function<void(const ProgressRecord&)>;

// `progress` is called on rank 0 only, and may be empty.
TrainingResult train(const TrainerOptions& options, const TrainingData& data,
                     const std::shared_ptr<ProcessGroup>& group,
                     const ProgressSink& progress = {});

}  // namespace lockstep
