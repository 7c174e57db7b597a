// The options of a training run: the flags of `lockstep train` set them, and
// the trainer reads them. Their defaults stand here and nowhere else.
//
// The file needs no LibTorch, and no library but base: the command includes it.
//
// Threads: any thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "apps/options/training_names.h"

namespace lockstep {

// How the learning rate varies: see apps/trainer/loop/learning_rate.h. The
// defaults of step, and of the warm-up, are torchvision's.
struct ScheduleOptions {
  std::string name = "one-cycle";  // see kSchedules
  int step_size = 30;              // epochs; of step
  double gamma = 0.1;              // of step
  double min_rate = 0;             // of cosine
  // Epochs, maybe fractional, over which the rate rises linearly from
  // `warmup_decay` times the full rate before the schedule begins. Not for
  // one-cycle, which has a warm-up of its own.
  double warmup_epochs = 0;
  double warmup_decay = 0.01;
};

struct ReplicaChecksOptions {
  // The number of first steps to watch; 0 turns the table off.
  int consistency_steps = 0;
  // Parameters whose values the table shows.
  std::vector<std::string> show{};
  // Steps from one comparison of all weights to the next; 0 turns it off.
  std::int64_t fingerprint_every = 0;
  // Takes the tables, on rank 0; may be empty.
  std::function<void(const std::string&)> print{};

  bool any() const { return consistency_steps > 0 || fingerprint_every > 0; }
};

// How a model computes, in training and later.
struct ComputeOptions {
  // Whether matrix products and convolutions in float32 may round their factors
  // to 10 bits: TF32, on GPUs only; for the whole process. When false,
  // LibTorch's default still rounds in convolutions.
  bool tf32 = false;
  // Whether images and weights of convolutions are stored channels-last, for
  // the fastest kernels: other bits, the same job.
  bool channels_last = false;
};

// The sizes of the hidden layers of an mlp for which none are named.
inline std::vector<std::int64_t> usual_hidden_sizes() { return {512, 256}; }

struct TrainerOptions {
  std::string model = "convnet";                            // see kModels
  std::vector<std::int64_t> hidden = usual_hidden_sizes();  // mlp only
  std::optional<double> dropout{};  // the model's own when empty
  std::string stem = "auto";        // of residual networks; see kStems

  int epochs = 5;
  // Images per step of all ranks together; must divide evenly over them.
  std::int64_t global_batch = 128;
  std::string optimizer = "sgd";  // see kOptimizers
  // The full rate, which `schedule` varies; not scaled by anything else. The
  // optimizer's usual one when empty: see learning_rate_of().
  std::optional<double> learning_rate{};
  ScheduleOptions schedule{};
  double momentum = 0.9;  // sgd's
  double weight_decay = 0;
  // The number of micro-batches in a rank's share of a batch, each with a pass
  // of its own: less memory, the same gradient except with batch normalisation,
  // which sees one micro-batch at a time.
  int accumulate = 1;
  // The largest global norm of the gradients; larger ones are scaled down.
  std::optional<double> clip_norm{};
  // What a loss, gradients or weights do that are not finite: see kOnNan.
  std::string on_nan = "stop";
  // Whether each rank keeps 1/n of the optimizer's state and makes 1/n of its
  // step.
  bool sharded = false;
  // Whether passes may leave parameters without a gradient.
  bool find_unused = false;
  std::string strategy = "ddp";  // see kStrategies
  // Per process: threads of mirrored and central, device slots of
  // data-parallel; the others have one.
  int replicas = 1;
  // Shards of a global batch, a power of two, with which 1, 2, 4, … ranks give
  // the same bits, of one compute thread each: see
  // lockstep/torch/logical_shards.h.
  std::optional<int> logical_shards{};
  std::string precision = "float32";  // of training; see kPrecisions
  ComputeOptions compute{};
  // Whether the forward and backward pass is captured once, in a CUDA graph,
  // and then replayed: on GPUs, by the strategy ddp. See TrainingStep.
  bool cuda_graph = false;
  // The device of this process, or of its first replica: see
  // apps/trainer/loop/training_device.h.
  std::string device = "cpu";
  // What ranks send instead of gradients: see kHooks.
  std::string hook = "none";
  // Whether batch normalization takes its statistics over all ranks' samples.
  bool sync_batch_norm = false;
  ReplicaChecksOptions checks{};
  std::uint64_t seed = 0;
  // A trained model's file with the run's initial weights, as far as the models
  // agree: see take_weights() of apps/trainer/model/saved_model.h. Empty:
  // random weights from the seed. A checkpoint that the run resumes from takes
  // precedence.
  std::filesystem::path weights{};
  // How training images change at random: a name of kAugmentations, or
  // transforms as text (docs/guides/transforms.md); empty: they do not.
  std::string augment{};
  // The side of the images that the model sees of an image folder.
  std::int64_t image_size = 224;
  // Whether training images of a folder are decoded whole, as torchvision does,
  // also where they become much smaller: DecodeScaling of
  // lockstep/data/image_folder.h. Test images always are.
  bool exact_pixels = false;
  // Threads per rank that read samples.
  int workers = 1;
  // Images that may be broken: of training images per rank and epoch, which are
  // replaced by the next ones of the data set; of test images per rank, which
  // are left out.
  std::int64_t max_broken = 0;

  // The file for the trained model, whose folder is created; not saved when
  // empty.
  std::filesystem::path output{};
  // The folder for checkpoints, written every checkpoint_every steps (every
  // epoch when that is empty) and at the end; no checkpoints when empty. The
  // newest `keep` are kept.
  std::filesystem::path checkpoint_dir{};
  std::optional<std::int64_t> checkpoint_every{};
  int keep = 3;
  std::string checkpoint_format = "single";
  // "auto" resumes from the newest checkpoint in checkpoint_dir, or begins a
  // new run without one; any other text is a checkpoint or a folder of
  // checkpoints to resume from. Empty: begins a new run, which is refused if
  // checkpoint_dir has checkpoints.
  std::string resume{};
  // The folder for TensorBoard curves and JSON lines, see
  // apps/trainer/loop/run_log.h; no log when empty.
  std::filesystem::path log_dir{};
  // Evaluates every N epochs, and always after the last.
  int evaluate_every = 1;
  // Steps between two step records, and between two points of the curves.
  int log_interval = 10;
};

// The full rate of the run. An unknown optimizer, which the trainer refuses,
// has none.
inline double learning_rate_of(const TrainerOptions& options) {
  if (options.learning_rate) return *options.learning_rate;
  for (const KnownOptimizer& known : kOptimizers)
    if (known.name == options.optimizer) return known.learning_rate;
  return 0;
}

}  // namespace lockstep
