// Trains an image classifier on the ranks of a group: the job behind
// `lockstep train`.
//
// Every process holds the whole dataset in memory; each rank trains on its
// share of each global batch, so that a run on 1, 2, 4 or 8 ranks takes the
// same steps. Ranks are processes under DistributedDataParallel, or as
// `options.strategy` says: see train/trainer/strategies.h. After an epoch the
// test set, divided over the ranks, is evaluated. At the end rank 0 saves the
// model while the others wait.
//
// Options, data and the numbers of ranks and compute threads determine a run:
// repeated, it gives the same weights bit for bit, also when it is stopped and
// resumed. With logical shards the number of ranks does not matter.
//
// Threads: every process of the group calls train(), each with its own options
//          that are equal to the others'. Rank 0's thread calls `progress`.
// Errors:  DifferentJobs (comm/group/same_job.h) where the processes' options
//          or data differ: see train/trainer/run_description.h.
//          InvalidArgument for options and data that do not fit together, on
//          every rank, before any computation; an output that cannot be written
//          fails then too. Mismatch on every rank when a requested check finds
//          replicas that differ. SystemError (ENOMEM) where a GPU has no room
//          for the run, see torch/device/out_of_memory.h. Those of collectives.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/data/image_dataset.h"
#include "src/base/progress_record.h"
#include "src/train/evaluate/metrics.h"
#include "src/train/model/models.h"
#include "src/train/trainer/learning_rate.h"
#include "src/train/trainer/replica_checks.h"

namespace lockstep {

struct TrainerOptions {
  std::string model = "convnet";
  std::vector<std::int64_t> hidden{512, 256};  // mlp only
  std::optional<double> dropout{};             // the model's own when empty

  int epochs = 5;
  // Images per step of all ranks together; must divide evenly over them.
  std::int64_t global_batch = 128;
  std::string optimizer = "sgd";  // or adam
  // The full rate, which `schedule` varies; not scaled by anything else.
  double learning_rate = 0.05;
  ScheduleOptions schedule{};
  double momentum = 0.9;  // sgd's
  double weight_decay = 0;
  // The number of micro-batches in a rank's share of a batch, each with a pass
  // of its own: less memory, the same gradient except with batch normalisation,
  // which sees one micro-batch at a time.
  int accumulate = 1;
  // The largest global norm of the gradients; larger ones are scaled down.
  std::optional<double> clip_norm{};
  // Whether each rank keeps 1/n of the optimizer's state and makes 1/n of its
  // step.
  bool sharded = false;
  // Whether passes may leave parameters without a gradient.
  bool find_unused = false;
  // See train/trainer/strategies.h.
  std::string strategy = "ddp";
  // Per process: threads of mirrored and central, device slots of
  // data-parallel; the others have one.
  int replicas = 1;
  // Shards of a global batch, a power of two, with which 1, 2, 4, … ranks give
  // the same bits, of one compute thread each: see
  // torch/frontends/logical_shards.h.
  std::optional<int> logical_shards{};
  std::string precision = "float32";  // of training; or bfloat16, float16
  // Whether matrix products and convolutions in float32 may round their factors
  // to 10 bits: TF32, on GPUs only; for the whole process. When false,
  // LibTorch's default still rounds in convolutions.
  bool tf32 = false;
  // Whether images and weights of convolutions are stored channels-last, for
  // the fastest kernels: other bits, the same job.
  bool channels_last = false;
  // Whether the forward and backward pass is captured once, in a CUDA graph,
  // and then replayed: on GPUs, by the strategy ddp. See TrainingStepOptions.
  bool cuda_graph = false;
  // The device of this process, or of its first replica: see
  // train/trainer/training_device.h.
  std::string device = "cpu";
  // How ranks exchange gradients: see known_hooks().
  std::string hook = "none";
  // Whether batch normalization takes its statistics over all ranks' samples.
  bool sync_batch_norm = false;
  ReplicaChecksOptions checks{};
  std::uint64_t seed = 0;
  // A trained model's file with the run's initial weights, as far as the models
  // agree: see take_weights() of train/model/saved_model.h. Empty: random
  // weights from the seed. A checkpoint that the run resumes from takes
  // precedence.
  std::filesystem::path weights{};
  // Shifts training images by up to two pixels and mirrors every other one.
  bool augment = false;

  // The file for the trained model, whose folder is created; not saved when
  // empty.
  std::filesystem::path output{};
  // The folder for checkpoints, written every checkpoint_every steps (every
  // epoch when that is empty) and at the end; no checkpoints when empty. The
  // newest `keep` are kept.
  std::filesystem::path checkpoint_dir{};
  std::optional<std::int64_t> checkpoint_every{};
  int keep = 3;
  // "auto" resumes from the newest checkpoint in checkpoint_dir, or begins a
  // new run without one; any other text is a checkpoint or a folder of
  // checkpoints to resume from. Empty: begins a new run, which is refused if
  // checkpoint_dir has checkpoints.
  std::string resume{};
  // The folder for TensorBoard curves and JSON lines, see
  // train/trainer/run_log.h; no log when empty.
  std::filesystem::path log_dir{};
  // Evaluates every N epochs, and always after the last.
  int evaluate_every = 1;
  // Steps between two step records, and between two points of the curves.
  int log_interval = 10;
};

// The two splits of one dataset.
struct TrainingData {
  ImageDataset train;
  ImageDataset test;
};

struct TrainingResult {
  Metrics train;  // of the last epoch, while its weights changed
  Metrics test;   // of the final weights
  // Steps whose gradients overflowed in float16.
  std::int64_t skipped_steps = 0;
  std::chrono::duration<double> duration{};
  std::optional<std::string> compression{};  // of gradients, as a sentence
  std::optional<std::filesystem::path> resumed_from{};
  // Layers for which the file of weights had none; empty without a file.
  std::optional<std::vector<std::string>> layers_begun_anew{};
  std::shared_ptr<Classifier> model;
};

// Takes the records of a run: one start, then steps and epochs. The caller
// reports the end.
using ProgressSink = std::function<void(const ProgressRecord&)>;

// `progress` is called on rank 0 only, and may be empty.
TrainingResult train(const TrainerOptions& options, const TrainingData& data,
                     std::shared_ptr<ProcessGroup> group,
                     const ProgressSink& progress = {});

}  // namespace lockstep
