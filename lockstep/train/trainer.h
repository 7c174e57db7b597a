// Trains an image classifier on the ranks of a group: the job behind
// `lockstep train`.
//
// Every process holds the whole dataset in memory; each rank trains on its
// share of each global batch, so that a run on 1, 2, 4 or 8 ranks takes the
// same steps. Ranks are processes under DistributedDataParallel, or what
// `options.strategy` makes of them: see train/strategies.h. After an epoch the
// test set, divided over the ranks, is evaluated. At the end rank 0 saves the
// model while the others wait.
//
// A run follows from its options, the data and the number of ranks and compute
// threads: repeated, it gives the same weights bit for bit. With logical shards
// the number of ranks does not count. One that is stopped and resumed gives
// them too.
//
// Threads: every process of the group calls train(), each with its own options
//          that are equal to the others'. `progress` is called in the thread
//          of rank 0.
// Errors:  InvalidArgument for options and data that do not fit together, on
//          every rank and before anything is computed; an output that cannot
//          be written is found out then too. Mismatch on every rank when a
//          check that was asked for finds replicas that are not the same.
//          SystemError (ENOMEM) where a GPU has no room for the run, see
//          torch/out_of_memory.h. What collectives throw.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/progress_record.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/data/image_dataset.h"
#include "lockstep/train/learning_rate.h"
#include "lockstep/train/metrics.h"
#include "lockstep/train/models.h"
#include "lockstep/train/replica_checks.h"

namespace lockstep {

struct TrainerOptions {
  std::string model = "convnet";
  std::vector<std::int64_t> hidden{512, 256};  // mlp only
  std::optional<double> dropout{};             // the model's own when empty

  int epochs = 5;
  // Images in a step of all ranks together; they divide it evenly.
  std::int64_t global_batch = 128;
  std::string optimizer = "sgd";  // or adam
  // The full rate, which `schedule` varies; not scaled by anything else.
  double learning_rate = 0.05;
  ScheduleOptions schedule{};
  double momentum = 0.9;  // sgd's
  double weight_decay = 0;
  // Micro-batches that a rank's share of a batch is cut into, each with a pass
  // of its own: less memory, the same gradient but for batch normalisation,
  // which sees a micro-batch at a time.
  int accumulate = 1;
  // The largest norm of all gradients together; longer ones are scaled.
  std::optional<double> clip_norm{};
  // Whether each rank keeps 1/n of the optimizer's state and makes 1/n of its
  // step.
  bool sharded = false;
  // Whether passes may leave parameters without a gradient.
  bool find_unused = false;
  // By which way in it trains: see train/strategies.h.
  std::string strategy = "ddp";
  // Of each process: threads of mirrored and central, device slots of
  // data-parallel; the others have one.
  int replicas = 1;
  // Shards of a global batch, a power of two, with which 1, 2, 4, … ranks give
  // the same bits, of one compute thread each: see torch/logical_shards.h.
  std::optional<int> logical_shards{};
  std::string precision = "float32";  // of training; or bfloat16, float16
  // Whether matrix products and convolutions in float32 may round what they
  // multiply to 10 bits: TF32, on GPUs only; for the whole process. Without it
  // LibTorch does so in convolutions, unless told otherwise.
  bool tf32 = false;
  // Whether images and weights of convolutions lie with their channels next to
  // each other, as the fastest kernels want them: other bits, the same job.
  bool channels_last = false;
  // Whether the forward and backward pass is captured once, in a CUDA graph,
  // and then replayed: on GPUs, by the strategy ddp. See TrainingStepOptions.
  bool cuda_graph = false;
  // This process's, or its first replica's: see train/training_device.h.
  std::string device = "cpu";
  // What ranks send each other about gradients: see known_hooks().
  std::string hook = "none";
  // Whether batch normalization takes its statistics over all ranks' samples.
  bool sync_batch_norm = false;
  ReplicaChecksOptions checks{};
  std::uint64_t seed = 0;
  // A trained model's file, whose weights the run begins with, as far as the
  // model is the same: see take_weights() of train/saved_model.h. Empty: random
  // ones, that follow from the seed. A checkpoint that the run goes on from
  // counts more.
  std::filesystem::path weights{};
  // Shifts training images by up to two pixels and mirrors every other one.
  bool augment = false;

  // Where the trained model goes; nowhere when empty. Its folder is made.
  std::filesystem::path output{};
  // Where checkpoints to go on from go, all so many steps (an epoch's when
  // empty) and at the end; nowhere when empty. The newest `keep` are kept.
  std::filesystem::path checkpoint_dir{};
  std::optional<std::int64_t> checkpoint_every{};
  int keep = 3;
  // "auto" goes on from the newest in checkpoint_dir, or begins where there is
  // none; anything else is a checkpoint or a folder of some to go on from.
  // Empty: begins, which is refused where there are some already.
  std::string resume{};
  // Where curves for TensorBoard and JSON lines go, see train/run_log.h;
  // nowhere when empty.
  std::filesystem::path log_dir{};
  // Epochs between two evaluations; the last epoch always has one.
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
  // Those whose gradients had overflowed in float16.
  std::int64_t skipped_steps = 0;
  std::chrono::duration<double> duration{};
  std::optional<std::string> compression{};  // of gradients, in words
  std::optional<std::filesystem::path> resumed_from{};
  // Layers that the file of weights had none for; nothing without a file.
  std::optional<std::vector<std::string>> layers_begun_anew{};
  std::shared_ptr<Classifier> model;
};

// Takes the records of a run: one start, then steps and epochs. The end is the
// caller's to report.
using ProgressSink = std::function<void(const ProgressRecord&)>;

// `progress` is called on rank 0 only, and may be empty.
TrainingResult train(const TrainerOptions& options, const TrainingData& data,
                     std::shared_ptr<ProcessGroup> group,
                     const ProgressSink& progress = {});

}  // namespace lockstep
