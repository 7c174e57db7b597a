// The names that options of a training run take, one table per kind. The flags
// and their help read these tables, and the library parses a name into its enum
// and switches on that without a default: the compiler names the places where a
// new row needs code.
//
// The file needs no LibTorch, and no library but base: the command includes it.
//
// Threads: any thread.
// Errors:  InvalidArgument for an unknown name, with the known ones.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/name_table.h"

namespace lockstep {

// See apps/trainer/model/models.h.
enum class ModelName { kConvnet, kCnn, kMlp, kResnet18, kResnet34, kResnet50 };

struct KnownModel {
  std::string_view name;
  ModelName value;
  // Whether it is a residual network: batch normalization, and no dropout.
  bool residual = false;
};

inline constexpr auto kModels =
    std::to_array<KnownModel>({{"convnet", ModelName::kConvnet},
                               {"cnn", ModelName::kCnn},
                               {"mlp", ModelName::kMlp},
                               {"resnet18", ModelName::kResnet18, true},
                               {"resnet34", ModelName::kResnet34, true},
                               {"resnet50", ModelName::kResnet50, true}});

inline const KnownModel& known_model(std::string_view name) {
  return row_named(kModels, "model", name);
}

// The first is what --augment means without a value.
inline constexpr std::string_view kStandardAugmentation = "standard";

struct KnownAugmentation {
  std::string_view name;
  std::string_view meaning;
};

inline constexpr auto kAugmentations = std::to_array<KnownAugmentation>(
    {{kStandardAugmentation,
      "images in memory shift by up to 2 pixels and flip; those of a folder as "
      "imagenet"},
     {"imagenet", "random_resized_crop and hflip"},
     {"cifar", "random_crop with a padding of 4, and hflip"}});

enum class OptimizerName { kSgd, kAdam };

struct KnownOptimizer {
  std::string_view name;
  OptimizerName value;
  double learning_rate;  // of a run that names none
};

inline constexpr auto kOptimizers =
    std::to_array<KnownOptimizer>({{"sgd", OptimizerName::kSgd, 0.05},
                                   {"adam", OptimizerName::kAdam, 0.001}});

inline OptimizerName parse_optimizer(std::string_view name) {
  return row_named(kOptimizers, "optimizer", name).value;
}

enum class Schedule {
  // Rises linearly to the full rate over the first fifth of the steps, then
  // falls along a half cosine to zero: "one cycle" (Smith and Topin, 2018),
  // with the annealing of Loshchilov and Hutter, 2017.
  kOneCycle,
  kConstant,
  // Is multiplied by `gamma` every `step_size` epochs.
  kStep,
  // Falls along a half cosine to `min_rate`.
  kCosine,
};

inline constexpr auto kSchedules = std::to_array<NamedValue<Schedule>>(
    {{"one-cycle", Schedule::kOneCycle,
      "the rate rises to --lr over a fifth of the run, then falls to "
      "zero"},
     {"constant", Schedule::kConstant},
     {"step", Schedule::kStep, "it drops now and then"},
     {"cosine", Schedule::kCosine, "it falls along a half cosine"}});

// "constant, step or cosine": the schedules without a warm-up of their own.
inline std::string schedules_with_warmup(std::string_view conjunction) {
  std::vector<std::string> names;
  for (const auto& row : kSchedules)
    if (row.value != Schedule::kOneCycle) names.emplace_back(row.name);
  return listed(names, conjunction);
}

inline Schedule parse_schedule(std::string_view name) {
  return row_named(kSchedules, "schedule", name).value;
}

// The type in which a model computes in training.
enum class Precision {
  kFloat32,
  // Convolutions and matrix products in bfloat16, losses and other operations
  // that need more digits in float32: LibTorch's autocast. bfloat16 has the
  // range of float32, so gradients need no scaling.
  kBfloat16,
  // The same in float16: more digits, but nothing above 65,504 and little below
  // 1e-5, so losses must be scaled: see lockstep/torch/gradient_scaler.h.
  kFloat16,
};

inline constexpr auto kPrecisions =
    std::to_array<NamedValue<Precision>>({{"float32", Precision::kFloat32},
                                          {"bfloat16", Precision::kBfloat16},
                                          {"float16", Precision::kFloat16}});

inline Precision parse_precision(std::string_view name) {
  return row_named(kPrecisions, "precision", name).value;
}

// The first layers of a residual network: see apps/trainer/model/resnet.h.
enum class Stem { kAuto, kImageNet, kCifar };

inline constexpr auto kStems = std::to_array<NamedValue<Stem>>(
    {{"auto", Stem::kAuto,
      "cifar for images below 64 pixels, imagenet from there on"},
     {"imagenet", Stem::kImageNet, "7 x 7 of stride 2, then pooling"},
     {"cifar", Stem::kCifar, "3 x 3 of stride 1"}});

inline Stem parse_stem(std::string_view name) {
  return row_named(kStems, "stem", name).value;
}

// What follows from a loss or from weights that are not finite: see
// apps/trainer/loop/nan_check.h.
enum class OnNan { kStop, kSkip, kIgnore };

inline constexpr auto kOnNan = std::to_array<NamedValue<OnNan>>(
    {{"stop", OnNan::kStop, "end the run with an error"},
     {"skip", OnNan::kSkip, "leave out steps whose gradients are not finite"},
     {"ignore", OnNan::kIgnore, "go on, without saving such a checkpoint"}});

inline OnNan parse_on_nan(std::string_view name) {
  return row_named(kOnNan, "answer to NaN", name).value;
}

// What ranks send instead of gradients: see
// apps/trainer/loop/gradient_traffic.h.
enum class HookName { kNone, kFp16, kBf16, kPowerSgd, kPostLocalSgd };

inline constexpr auto kHooks = std::to_array<NamedValue<HookName>>(
    {{"none", HookName::kNone, "the gradients"},
     {"fp16", HookName::kFp16},
     {"bf16", HookName::kBf16},
     {"power-sgd", HookName::kPowerSgd, "thin matrices"},
     {"post-local-sgd", HookName::kPostLocalSgd, "models, every 4th step"}});

inline HookName parse_hook(std::string_view name) {
  return row_named(kHooks, "hook", name).value;
}

// See CheckpointFormat in lockstep/checkpoint/checkpoint.h.
enum class CheckpointFiles { kSingle, kSharded };

inline constexpr auto kCheckpointFormats =
    std::to_array<NamedValue<CheckpointFiles>>(
        {{"single", CheckpointFiles::kSingle, "one file, which rank 0 writes"},
         {"sharded", CheckpointFiles::kSharded,
          "a folder, to which each rank writes its part while training goes "
          "on"}});

inline CheckpointFiles parse_checkpoint_format(std::string_view name) {
  return row_named(kCheckpointFormats, "checkpoint format", name).value;
}

// See apps/trainer/loop/strategies.h.
enum class StrategyName {
  kDdp,
  kHorovod,
  kMirrored,
  kMultiWorker,
  kCentral,
  kDataParallel
};

// What a strategy makes of the ranks of a run.
enum class RanksAre { kProcesses, kThreads, kDeviceSlots };

struct KnownStrategy {
  std::string_view name;
  StrategyName value;
  RanksAre ranks;
};

inline constexpr auto kStrategies = std::to_array<KnownStrategy>(
    {{"ddp", StrategyName::kDdp, RanksAre::kProcesses},
     {"horovod", StrategyName::kHorovod, RanksAre::kProcesses},
     {"mirrored", StrategyName::kMirrored, RanksAre::kThreads},
     {"multi-worker", StrategyName::kMultiWorker, RanksAre::kProcesses},
     {"central", StrategyName::kCentral, RanksAre::kThreads},
     {"data-parallel", StrategyName::kDataParallel, RanksAre::kDeviceSlots}});

inline const KnownStrategy& known_strategy(std::string_view name) {
  return row_named(kStrategies, "strategy", name);
}

// "mirrored or central": the strategies that make this of the ranks.
inline std::string strategies_of(RanksAre ranks) {
  return list_names(kStrategies, "or", [ranks](const KnownStrategy& known) {
    return known.ranks == ranks;
  });
}

// Whether all ranks of the strategy are in one process.
inline bool is_one_process(std::string_view strategy) {
  return known_strategy(strategy).ranks != RanksAre::kProcesses;
}

}  // namespace lockstep
