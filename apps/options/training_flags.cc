#include "apps/options/training_flags.h"

#include <concepts>
#include <limits>
#include <utility>

#include "src/base/name_table.h"
#include "src/data/transform/image_folder_splits.h"

namespace lockstep {
namespace {

using namespace flag_groups;
using Flags = std::vector<TrainingFlag>;

constexpr double kNoLimit = std::numeric_limits<double>::infinity();

const char* on_or_off(bool option) { return option ? "on" : "off"; }

// "sgd: 0.05, adam: 0.001".
std::string usual_learning_rates() {
  std::string text;
  for (const KnownOptimizer& known : kOptimizers)
    text += (text.empty() ? "" : ", ") + std::string(known.name) + ": " +
            shortest_text(known.learning_rate);
  return text;
}

// Older checkpoints have "on" and "off".
std::string recorded_augmentation(const std::string& augment) {
  if (augment == kStandardAugmentation) return "on";
  return augment.empty() ? "off" : augment;
}

std::string text_of(bool value) { return on_or_off(value); }
std::string text_of(double value) { return shortest_text(value); }
std::string text_of(const std::string& value) { return value; }
template <std::integral Number>
std::string text_of(Number value) {
  return std::to_string(value);
}
std::string text_of(const std::filesystem::path& path) {
  return path.empty() ? "not given" : "given";
}
template <class Value>
std::string text_of(const std::vector<Value>& list) {
  std::string text;
  for (const Value& value : list)
    text += (text.empty() ? "" : ",") + text_of(value);
  return text;
}

Flags run_flags(TrainerOptions& options) {
  return {
      {.name = "--strategy",
       .target = &options.strategy,
       .help = "Frontend: " + strategies_of(RanksAre::kProcesses) +
               " (ranks are processes), " + strategies_of(RanksAre::kThreads) +
               " (threads of one process), " +
               strategies_of(RanksAre::kDeviceSlots) +
               " (device slots of one rank)",
       .check = one_of("strategy", names_in(kStrategies))},
      {.name = "-o,--output",
       .target = &options.output,
       .help = "Where the trained model is saved; a missing folder is created "
               "[MODEL-DATASET.safetensors]",
       .type_name = "FILE"},
      {.name = "--evaluate-every",
       .target = &options.evaluate_every,
       .help = "Epochs between two evaluations on the test set",
       .check = whole_number(1)},
      {.name = "--log-interval",
       .target = &options.log_interval,
       .help = "Steps between two reports of progress",
       .check = whole_number(1)},
  };
}

Flags data_flags(TrainerOptions& options) {
  return {
      {.name = "--augment",
       .target = &options.augment,
       .help = "Change training images at random: " +
               list_names(kAugmentations) + "; or transforms as text [" +
               std::string(kStandardAugmentation) + "]",
       .type_name = "[NAME|TRANSFORMS]",
       .alone = std::string(kStandardAugmentation),
       .recorded = recorded_augmentation(options.augment),
       .in_checkpoint = "augmentation"},
      {.name = "--image-size",
       .target = &options.image_size,
       .help = "Side of the images that the model sees of an imagefolder",
       .check = whole_number(1, kMostImageSide),
       .type_name = "PIXELS",
       .shows_in_data = true},
      {.name = "--exact-pixels",
       .target = &options.exact_pixels,
       .help = "Decode JPEG files of an imagefolder as torchvision does, also "
               "those that become much smaller: slower",
       .shows_in_data = true},
      {.name = "--max-broken",
       .target = &options.max_broken,
       .help = "Images of an imagefolder, per rank and epoch, that may be "
               "broken: those for training are replaced by the next ones, "
               "those of the test left out; one more ends the run",
       .check = whole_number(0),
       .type_name = "N"},
  };
}

Flags model_flags(TrainerOptions& options) {
  TrainingFlag model = model_flag(options.model);
  model.in_checkpoint = "model";
  return {
      model,
      {.name = "--hidden",
       .target = &options.hidden,
       .help =
           "Sizes of the mlp's hidden layers: " + text_of(usual_hidden_sizes()),
       .check = list_of(whole_number(1)),
       .type_name = "N,N,...",
       .recorded = options.model == "mlp" ? text_of(options.hidden) : "none",
       .in_checkpoint = "hidden"},
      {.name = "--stem",
       .target = &options.stem,
       .help = "First layers of a resnet: " + list_names(kStems),
       .check = one_of("stem", names_in(kStems))},
      {.name = "--dropout",
       .target = &options.dropout,
       .help = "Share of activations dropped in training; the model's own when "
               "not given",
       .check = number(0, 1),
       .unset = "the model's",
       .in_checkpoint = "dropout"},
      {.name = "--weights",
       .target = &options.weights,
       .help = "Begin with the weights of a trained model: ours, or "
               "torchvision's as safetensors; a first or last layer whose "
               "shape differs begins anew",
       .type_name = "FILE"},
  };
}

Flags step_flags(TrainerOptions& options) {
  return {
      {.name = "--epochs",
       .target = &options.epochs,
       .help = "Passes over the training set",
       .check = whole_number(1)},
      {.name = "--global-batch-size",
       .target = &options.global_batch,
       .help = "Images per step, divided over the ranks",
       .check = whole_number(1),
       .in_checkpoint = "global batch size"},
      {.name = "--accumulate",
       .target = &options.accumulate,
       .help = "Micro-batches into which a rank divides its part of a batch, "
               "to save memory",
       .check = whole_number(1)},
      {.name = "--logical-shards",
       .target = &options.logical_shards,
       .help = "Shards of every batch, a power of two: 1, 2, 4 ... up to this "
               "many ranks then give the same bits",
       .check = whole_number(1),
       .type_name = "N",
       .unset = "0",
       .in_checkpoint = "logical shards"},
      {.name = "--seed",
       .target = &options.seed,
       .help = "The same seed, the same run",
       .check = whole_number(0),
       .in_checkpoint = "seed"},
  };
}

Flags optimizer_flags(TrainerOptions& options) {
  return {
      {.name = "--optimizer",
       .target = &options.optimizer,
       .help = list_names(kOptimizers),
       .check = one_of("optimizer", names_in(kOptimizers)),
       .in_checkpoint = "optimizer"},
      {.name = "--lr",
       .target = &options.learning_rate,
       .help = "Learning rate; never scaled by the number of ranks [" +
               usual_learning_rates() + "]",
       .check = positive_number(),
       .recorded = text_of(learning_rate_of(options))},
      {.name = "--momentum",
       .target = &options.momentum,
       .help = "Of sgd",
       .check = number(0, 1),
       .recorded =
           options.optimizer == "sgd" ? text_of(options.momentum) : "none",
       .in_checkpoint = "momentum"},
      {.name = "--weight-decay",
       .target = &options.weight_decay,
       .help = "L2 penalty",
       .check = number(0, kNoLimit),
       .in_checkpoint = "weight decay"},
      {.name = "--clip-norm",
       .target = &options.clip_norm,
       .help = "Largest norm of all gradients together",
       .check = positive_number()},
      {.name = "--on-nan",
       .target = &options.on_nan,
       .help = "What follows from a loss or weights that are not finite: " +
               list_names(kOnNan),
       .check = one_of("answer to NaN", names_in(kOnNan))},
  };
}

// Their names and defaults are torchvision's, as far as that has them.
Flags schedule_flags(ScheduleOptions& schedule) {
  return {
      {.name = "--schedule",
       .target = &schedule.name,
       .help = list_names(kSchedules),
       .check = one_of("schedule", names_in(kSchedules))},
      {.name = "--lr-step-size",
       .target = &schedule.step_size,
       .help = "step: epochs after which the rate drops",
       .check = whole_number(1)},
      {.name = "--lr-gamma",
       .target = &schedule.gamma,
       .help = "step: factor of each drop",
       .check = positive_number()},
      {.name = "--lr-min",
       .target = &schedule.min_rate,
       .help = "cosine: the rate at the end of the run",
       .check = number(0, kNoLimit)},
      {.name = "--lr-warmup-epochs",
       .target = &schedule.warmup_epochs,
       .help = "Epochs, or a part of one, over which the rate rises linearly "
               "before " +
               schedules_with_warmup("or") + " begins",
       .check = number(0, kNoLimit)},
      {.name = "--lr-warmup-decay",
       .target = &schedule.warmup_decay,
       .help = "Factor on the rate at the first step of the warm-up",
       .check = number(0, 1)},
  };
}

Flags rank_flags(TrainerOptions& options) {
  return {
      {.name = "--sharded",
       .target = &options.sharded,
       .help = "Divide the optimizer's state and work over the ranks"},
      {.name = "--find-unused",
       .target = &options.find_unused,
       .help = "Let a pass leave parameters without a gradient"},
      {.name = "--hook",
       .target = &options.hook,
       .help = "What ranks send instead of gradients: " + list_names(kHooks),
       .check = one_of("hook", names_in(kHooks)),
       .in_checkpoint = "hook"},
      {.name = "--sync-bn",
       .target = &options.sync_batch_norm,
       .help = "Let batch normalization see the samples of all ranks",
       .in_checkpoint = "sync-bn",
       .in_older = on_or_off(options.sync_batch_norm)},
      {.name = "--precision",
       .target = &options.precision,
       .help = "Precision of convolutions and matrix products in training: " +
               list_names(kPrecisions) + "; weights stay float32",
       .check = one_of("precision", names_in(kPrecisions)),
       .in_checkpoint = "precision"},
      {.name = "--cuda-graph",
       .target = &options.cuda_graph,
       .help = "Capture the pass once, and have GPUs replay it: for small "
               "steps, where the host limits"},
  };
}

Flags checkpoint_flags(TrainerOptions& options) {
  const bool automatic = options.resume == "auto";
  return {
      {.name = "--checkpoint-dir",
       .target = &options.checkpoint_dir,
       .help = "Save the whole run there regularly, to resume it",
       .type_name = "DIR"},
      {.name = "--checkpoint-every",
       .target = &options.checkpoint_every,
       .help = "Steps between two checkpoints [one epoch]",
       .check = whole_number(1),
       .unset = "one epoch"},
      {.name = "--keep",
       .target = &options.keep,
       .help = "Newest checkpoints that are kept",
       .check = whole_number(1)},
      {.name = "--checkpoint-format",
       .target = &options.checkpoint_format,
       .help = "How a checkpoint is stored: " + list_names(kCheckpointFormats),
       .check = one_of("checkpoint format", names_in(kCheckpointFormats))},
      {.name = "--resume",
       .target = &options.resume,
       .help = "Resume from a checkpoint, or the newest in a folder; auto: "
               "from the newest in --checkpoint-dir, if it has one",
       .type_name = "auto|PATH",
       .recorded = automatic ? options.resume
                             : text_of(std::filesystem::path(options.resume))},
  };
}

std::string problem_of_name(const std::string& name) {
  return name.empty() ? "\"\" is not the name of a parameter" : "";
}

Flags check_flags(ReplicaChecksOptions& checks) {
  return {
      {.name = "--check-consistency",
       .target = &checks.consistency_steps,
       .help = "Show for the first 3 steps, or N, which values agree on all "
               "ranks; end the run if a difference is wrong",
       .check = whole_number(1),
       .type_name = "[N]",
       .alone = "3",
       .tells_default = false},
      {.name = "--show-values",
       .target = &checks.show,
       .help = "Parameters whose first values, and gradients, "
               "--check-consistency shows: conv1.weight,fc.bias",
       .check = list_of(problem_of_name),
       .type_name = "NAME,NAME,..."},
      {.name = "--fingerprint-every",
       .target = &checks.fingerprint_every,
       .help = "Compare a hash of all weights over the ranks every N steps; "
               "end the run if they differ",
       .check = whole_number(1),
       .type_name = "N",
       .tells_default = false},
  };
}

}  // namespace

TrainingFlag model_flag(std::string& model) {
  return {.name = "--model",
          .target = &model,
          .help = list_names(kModels),
          .group = kModel,
          .check = one_of("model", names_in(kModels))};
}

Flags compute_flags(ComputeOptions& options) {
  return {{.name = "--tf32",
           .target = &options.tf32,
           .help = "Let GPUs round factors of float32 products to TF32",
           .group = kRanks},
          {.name = "--channels-last",
           .target = &options.channels_last,
           .help = "Store images and weights in channels-last layout",
           .group = kRanks}};
}

Flags training_flags(TrainerOptions& options) {
  Flags all;
  const auto add = [&all](const char* group, Flags flags) {
    for (TrainingFlag& flag : flags) {
      flag.group = group;
      all.push_back(std::move(flag));
    }
  };
  add(kRun, run_flags(options));
  add(kData, data_flags(options));
  add(kModel, model_flags(options));
  add(kSteps, step_flags(options));
  add(kOptimizer, optimizer_flags(options));
  add(kOptimizer, schedule_flags(options.schedule));
  add(kRanks, rank_flags(options));
  add(kRanks, compute_flags(options.compute));
  add(kCheckpoints, checkpoint_flags(options));
  add(kChecks, check_flags(options.checks));
  return all;
}

std::string long_name(const TrainingFlag& flag) {
  return flag.name.substr(flag.name.find("--"));
}

std::string recorded_value(const TrainingFlag& flag) {
  if (flag.recorded) return *flag.recorded;
  return std::visit(
      [&flag](const auto* target) -> std::string {
        if constexpr (requires { target->has_value(); })
          return *target ? text_of(**target) : flag.unset;
        else
          return text_of(*target);
      },
      flag.target);
}

}  // namespace lockstep
