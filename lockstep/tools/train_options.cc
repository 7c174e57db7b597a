#include "lockstep/tools/train_options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <string_view>

#include "lockstep/base/error.h"
#include "lockstep/tools/flags.h"
#include "lockstep/tools/launch_flags.h"

namespace lockstep {
namespace {

constexpr std::array<std::string_view, 2> kDatasets{"fashion-mnist", "mnist"};
constexpr std::array<std::string_view, 6> kModels{
    "convnet", "cnn", "mlp", "resnet18", "resnet34", "resnet50"};
constexpr std::array<std::string_view, 2> kOptimizers{"sgd", "adam"};
constexpr std::array<std::string_view, 2> kSchedules{"one-cycle", "constant"};
constexpr std::array<std::string_view, 2> kPrecisions{"float32", "bfloat16"};
constexpr double kNoLimit = std::numeric_limits<double>::infinity();
constexpr std::int64_t kDefaultGlobalBatch = 128;
constexpr int kMostDefaultRanks = 8;

void add_data_flags(CLI::App& command, TrainOptions& options) {
  command.add_option("--dataset", options.dataset, "fashion-mnist or mnist")
      ->check(one_of("dataset", kDatasets))
      ->capture_default_str();
  command
      .add_option("--data-dir", options.data_dir,
                  "Where the dataset's files are, if not where Debian's "
                  "package puts them")
      ->type_name("DIR");
  command.add_flag("--augment", options.augment,
                   "Shift and flip training images at random");
}

void add_model_flags(CLI::App& command, TrainOptions& options) {
  command
      .add_option("--model", options.model,
                  "convnet, cnn, mlp, resnet18, resnet34 or resnet50")
      ->check(one_of("model", kModels))
      ->capture_default_str();
  command
      .add_option("--hidden", options.hidden,
                  "Sizes of the mlp's hidden layers: 512,256")
      ->check(whole_number(1))
      ->delimiter(',')
      ->allow_extra_args(false)
      ->type_name("N,N,...");
  command
      .add_option("--dropout", options.dropout,
                  "Share of activations dropped in training; the model's own "
                  "when not given")
      ->check(number(0, 1));
}

void add_step_flags(CLI::App& command, TrainOptions& options) {
  command
      .add_option("--epochs", options.epochs, "Passes over the training set")
      ->check(whole_number(1))
      ->capture_default_str();
  command
      .add_option("--global-batch-size", options.global_batch_size,
                  "Images in a step, divided over the ranks [128]")
      ->check(whole_number(1));
  command
      .add_option("--batch-size", options.batch_size,
                  "Images in a step of one rank, as in PyTorch")
      ->check(whole_number(1));
  command.add_option("--seed", options.seed, "The same seed, the same run")
      ->check(whole_number(0))
      ->capture_default_str();
}

void add_optimizer_flags(CLI::App& command, TrainOptions& options) {
  command.add_option("--optimizer", options.optimizer, "sgd or adam")
      ->check(one_of("optimizer", kOptimizers))
      ->capture_default_str();
  command
      .add_option("--lr", options.learning_rate,
                  "Learning rate; never scaled by the number of ranks "
                  "[sgd: 0.05, adam: 0.001]")
      ->check(positive_number());
  command
      .add_option("--schedule", options.schedule,
                  "one-cycle (the rate rises to --lr over a fifth of the run, "
                  "then falls to zero) or constant")
      ->check(one_of("schedule", kSchedules))
      ->capture_default_str();
  command.add_option("--momentum", options.momentum, "Of sgd")
      ->check(number(0, 1))
      ->capture_default_str();
  command.add_option("--weight-decay", options.weight_decay, "L2 penalty")
      ->check(number(0, kNoLimit))
      ->capture_default_str();
}

void add_parallel_flags(CLI::App& command, TrainOptions& options) {
  command
      .add_option("--accumulate", options.accumulate,
                  "Micro-batches that a rank cuts its part of a batch into, "
                  "where memory is short")
      ->check(whole_number(1))
      ->capture_default_str();
  command
      .add_option("--clip-norm", options.clip_norm,
                  "Largest norm of all gradients together")
      ->check(positive_number());
  command.add_flag("--sharded", options.sharded,
                   "Divide the optimizer's state and work over the ranks");
  command.add_flag("--find-unused", options.find_unused,
                   "Let a pass leave parameters without a gradient");
  command
      .add_option("--precision", options.precision,
                  "Of convolutions and matrix products in training: float32 or "
                  "bfloat16; weights stay float32")
      ->check(one_of("precision", kPrecisions))
      ->capture_default_str();
}

void add_run_flags(CLI::App& command, TrainOptions& options) {
  command
      .add_option("-n,--ranks,--nproc-per-node", options.ranks,
                  "Processes that train together [the largest power of two up "
                  "to the number of cores and 8]")
      ->check(whole_number(1))
      ->type_name("N");
  command
      .add_option("--threads", options.threads,
                  "Compute threads of a rank [cores / ranks]")
      ->check(whole_number(1));
  command
      .add_option("-o,--output", options.output,
                  "Where the trained model is saved "
                  "[MODEL-DATASET.safetensors]")
      ->type_name("FILE");
  command
      .add_option("--evaluate-every", options.evaluate_every,
                  "Epochs between two passes over the test set")
      ->check(whole_number(1))
      ->capture_default_str();
  command
      .add_option("--log-interval", options.log_interval,
                  "Steps between two reports of progress")
      ->check(whole_number(1))
      ->capture_default_str();
}

std::string divisors_up_to(std::int64_t number, int most) {
  std::vector<int> divisors;
  for (int i = 1; i <= most; ++i)
    if (number % i == 0) divisors.push_back(i);
  return fmt::format("{}", fmt::join(divisors, ", "));
}

void divide_batch(TrainOptions& options) {
  const int ranks = *options.ranks;
  if (options.batch_size) {
    const std::int64_t total = *options.batch_size * ranks;
    if (options.global_batch_size.value_or(total) != total)
      throw InvalidArgument(fmt::format(
          "--batch-size {} on {} ranks makes a global batch of {}, but "
          "--global-batch-size is {}: give only one of them",
          *options.batch_size, ranks, total, *options.global_batch_size));
    options.global_batch_size = total;
    return;
  }
  const std::int64_t total =
      options.global_batch_size.value_or(kDefaultGlobalBatch);
  if (total % ranks != 0) {
    const std::int64_t below = total / ranks * ranks;
    throw InvalidArgument(fmt::format(
        "a global batch of {} cannot be divided over {} ranks: use -n with one "
        "of {}, or --global-batch-size {}{}",
        total, ranks, divisors_up_to(total, std::max(ranks, kMostDefaultRanks)),
        below > 0 ? fmt::format("{} or ", below) : "", below + ranks));
  }
  options.global_batch_size = total;
  options.batch_size = total / ranks;
}

void choose_ranks(TrainOptions& options, const TrainPlace& place) {
  if (place.world_size &&
      options.ranks.value_or(*place.world_size) != *place.world_size)
    throw InvalidArgument(
        fmt::format("-n is {}, but this program was started as one of {} ranks",
                    *options.ranks, *place.world_size));
  if (place.world_size)
    options.ranks = place.world_size;
  else if (!options.ranks)
    options.ranks = default_ranks(place.cores);
}

}  // namespace

int default_ranks(int cores) {
  const int most = std::clamp(cores, 1, kMostDefaultRanks);
  return static_cast<int>(std::bit_floor(static_cast<unsigned>(most)));
}

int default_threads(int cores, int ranks) {
  return std::max(1, cores / std::max(1, ranks));
}

void add_train_options(CLI::App& command, TrainOptions& options) {
  add_run_flags(command, options);
  add_data_flags(command, options);
  add_model_flags(command, options);
  add_step_flags(command, options);
  add_optimizer_flags(command, options);
  add_parallel_flags(command, options);
}

void complete_train_options(TrainOptions& options, const TrainPlace& place) {
  choose_ranks(options, place);
  divide_batch(options);
  if (options.accumulate > *options.batch_size)
    throw InvalidArgument(fmt::format(
        "--accumulate {} is more than the {} images that each of {} ranks has "
        "of a batch: use at most {}, or a larger --global-batch-size",
        options.accumulate, *options.batch_size, *options.ranks,
        *options.batch_size));
  if (!options.hidden.empty() && options.model != "mlp")
    throw InvalidArgument(fmt::format(
        "--hidden is for --model mlp; the model is {}", options.model));
  if (options.dropout.value_or(0) != 0 && options.model.starts_with("resnet"))
    throw InvalidArgument(fmt::format(
        "--dropout is for --model convnet, cnn and mlp; {} has none",
        options.model));
  if (options.model == "mlp" && options.hidden.empty())
    options.hidden = {512, 256};
  if (!options.learning_rate)
    options.learning_rate = options.optimizer == "adam" ? 0.001 : 0.05;
  if (options.output.empty())
    options.output =
        fmt::format("{}-{}.safetensors", options.model, options.dataset);
}

TrainOptions parse_train_options(std::span<const char* const> arguments,
                                 const TrainPlace& place) {
  CLI::App command;
  command.set_help_flag("");
  command.allow_extras();
  TrainOptions options;
  LaunchFlags ignored;
  add_train_options(command, options);
  add_launch_flags(command, ignored);
  parse_flags(command, arguments);
  const auto extras = command.remaining();
  if (!extras.empty())
    throw InvalidArgument(
        unknown_argument(command, "lockstep train", extras.front()));
  complete_train_options(options, place);
  return options;
}

}  // namespace lockstep
