#include "apps/train/train_options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <string>
#include <string_view>
#include <system_error>

#include "apps/job/data_flags.h"
#include "apps/job/device_flags.h"
#include "apps/job/flags.h"
#include "apps/job/launch_flags.h"
#include "apps/train/replica_flags.h"
#include "apps/train/schedule_flags.h"
#include "apps/train/strategy_flags.h"
#include "lockstep/base/error.h"
#include "lockstep/data/transforms.h"
#include "src/base/number_in.h"
#include "src/base/suggest.h"
#include "src/data/known_datasets.h"
#include "src/data/transform/image_folder_splits.h"
#include "src/data/transform/transform_text.h"

namespace lockstep {
namespace {

constexpr double kNoLimit = std::numeric_limits<double>::infinity();

// "sgd: 0.05, adam: 0.001".
std::string usual_learning_rates() {
  std::string text;
  for (const KnownOptimizer& known : kOptimizers)
    text += fmt::format("{}{}: {}", text.empty() ? "" : ", ", known.name,
                        known.learning_rate);
  return text;
}

void add_data_flags(CLI::App& command, TrainOptions& options) {
  add_dataset_flag(command, options.dataset)->capture_default_str();
  add_data_dir_flag(command, options.data_dir);
  command
      .add_option_function<std::string>(
          "--augment",
          [&augment = options.augment](const std::string& value) {
            augment =
                value.empty() ? std::string(kStandardAugmentation) : value;
          },
          fmt::format("Change training images at random: {}; or "
                      "transforms as text [{}]",
                      list_names(kAugmentations), kStandardAugmentation))
      ->expected(0, 1)
      ->type_name("[NAME|TRANSFORMS]");
  command
      .add_option("--image-size", options.image_size,
                  "Side of the images that the model sees of an imagefolder")
      ->check(whole_number(1, kMostImageSide))
      ->capture_default_str()
      ->type_name("PIXELS");
  add_workers_flag(command, options.readers);
  command.add_flag("--exact-pixels", options.exact_pixels,
                   "Decode JPEG files of an imagefolder as torchvision does, "
                   "also those that become much smaller: slower");
  command
      .add_option("--max-broken", options.max_broken,
                  "Images of an imagefolder, per rank and epoch, that may be "
                  "broken: those for training are replaced by the next ones, "
                  "those of the test left out; one more ends the run")
      ->check(whole_number(0))
      ->capture_default_str()
      ->type_name("N");
}

void add_model_flags(CLI::App& command, TrainOptions& options) {
  add_model_flag(command, options.model)->capture_default_str();
  command
      .add_option_function<std::string>(
          "--hidden",
          [&options](const std::string& list) {
            options.hidden = numbers_in<std::int64_t>(list);
          },
          fmt::format("Sizes of the mlp's hidden layers: {}",
                      fmt::join(options.hidden, ",")))
      ->check(list_of(whole_number(1)))
      ->type_name("N,N,...");
  command
      .add_option("--stem", options.stem,
                  "First layers of a resnet: " + list_names(kStems))
      ->check(one_of("stem", names_in(kStems)))
      ->capture_default_str();
  command
      .add_option("--dropout", options.dropout,
                  "Share of activations dropped in training; the model's own "
                  "when not given")
      ->check(number(0, 1));
  command
      .add_option("--weights", options.weights,
                  "Begin with the weights of a trained model: ours, or "
                  "torchvision's as safetensors; a first or last layer whose "
                  "shape differs begins anew")
      ->type_name("FILE");
}

void add_step_flags(CLI::App& command, TrainOptions& options) {
  command
      .add_option("--epochs", options.epochs, "Passes over the training set")
      ->check(whole_number(1))
      ->capture_default_str();
  command
      .add_option("--global-batch-size", options.global_batch,
                  fmt::format("Images per step, divided over the ranks [{}]",
                              options.global_batch))
      ->check(whole_number(1));
  command
      .add_option("--batch-size", options.batch_size,
                  "Images per step and rank, as in PyTorch")
      ->check(whole_number(1));
  command.add_option("--seed", options.seed, "The same seed, the same run")
      ->check(whole_number(0))
      ->capture_default_str();
}

void add_optimizer_flags(CLI::App& command, TrainOptions& options) {
  command.add_option("--optimizer", options.optimizer, list_names(kOptimizers))
      ->check(one_of("optimizer", names_in(kOptimizers)))
      ->capture_default_str();
  command
      .add_option("--lr", options.learning_rate,
                  fmt::format("Learning rate; never scaled by the number of "
                              "ranks [{}]",
                              usual_learning_rates()))
      ->check(positive_number());
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
                  "Micro-batches into which a rank divides its part of a "
                  "batch, to save memory")
      ->check(whole_number(1))
      ->capture_default_str();
  command
      .add_option("--clip-norm", options.clip_norm,
                  "Largest norm of all gradients together")
      ->check(positive_number());
  command
      .add_option("--on-nan", options.on_nan,
                  "What follows from a loss or weights that are not finite: " +
                      list_names(kOnNan))
      ->check(one_of("answer to NaN", names_in(kOnNan)))
      ->capture_default_str();
  command.add_flag("--sharded", options.sharded,
                   "Divide the optimizer's state and work over the ranks");
  command.add_flag("--find-unused", options.find_unused,
                   "Let a pass leave parameters without a gradient");
  command
      .add_option("--logical-shards", options.logical_shards,
                  "Shards of every batch, a power of two: 1, 2, 4 ... up to "
                  "this many ranks then give the same bits")
      ->check(whole_number(1))
      ->type_name("N");
  command
      .add_option(
          "--precision", options.precision,
          fmt::format("Precision of convolutions and matrix products in "
                      "training: {}; weights stay float32",
                      list_names(kPrecisions)))
      ->check(one_of("precision", names_in(kPrecisions)))
      ->capture_default_str();
  add_compute_flags(command, options.compute);
  command.add_flag("--cuda-graph", options.cuda_graph,
                   "Capture the pass once, and have GPUs replay it: for small "
                   "steps, where the host limits");
  command
      .add_option("--hook", options.hook,
                  "What ranks send instead of gradients: " + list_names(kHooks))
      ->check(one_of("hook", names_in(kHooks)))
      ->capture_default_str();
}

void add_run_flags(CLI::App& command, TrainOptions& options) {
  command
      .add_option("-n,--ranks,--nproc-per-node", options.ranks,
                  "Ranks that train together: processes, or what --strategy "
                  "makes of them [the largest power of two up to the number of "
                  "cores and 8]")
      ->check(whole_number(1, kMostRanksOfAHost))
      ->type_name("N");
  command
      .add_option("--threads", options.threads,
                  "Compute threads per rank [cores / ranks; 1 with "
                  "--logical-shards, since bits depend on it]")
      ->check(whole_number(1, kMostThreadsOfARank));
  command
      .add_option("-o,--output", options.output,
                  "Where the trained model is saved "
                  "[MODEL-DATASET.safetensors]")
      ->type_name("FILE");
  command
      .add_option("--evaluate-every", options.evaluate_every,
                  "Epochs between two evaluations on the test set")
      ->check(whole_number(1))
      ->capture_default_str();
  command
      .add_option("--log-interval", options.log_interval,
                  "Steps between two reports of progress")
      ->check(whole_number(1))
      ->capture_default_str();
  command.add_flag("!--no-hints", options.hints,
                   "Print no next commands when the run is over");
}

void add_checkpoint_flags(CLI::App& command, TrainOptions& options) {
  command
      .add_option("--checkpoint-dir", options.checkpoint_dir,
                  "Save the whole run there regularly, to resume it")
      ->type_name("DIR");
  command
      .add_option("--checkpoint-every", options.checkpoint_every,
                  "Steps between two checkpoints [one epoch]")
      ->check(whole_number(1));
  command
      .add_option(
          "--keep", options.keep,
          fmt::format("Newest checkpoints that are kept [{}]", options.keep))
      ->check(whole_number(1));
  command
      .add_option(
          "--checkpoint-format", options.checkpoint_format,
          "How a checkpoint is stored: " + list_names(kCheckpointFormats))
      ->check(one_of("checkpoint format", names_in(kCheckpointFormats)))
      ->capture_default_str();
  command
      .add_option("--resume", options.resume,
                  "Resume from a checkpoint, or the newest in a folder; auto: "
                  "from the newest in --checkpoint-dir, if it has one")
      ->type_name("auto|PATH");
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
    if (options.given.contains("--global-batch-size") &&
        options.global_batch != total)
      throw InvalidArgument(fmt::format(
          "--batch-size {} on {} ranks makes a global batch of {}, but "
          "--global-batch-size is {}: give only one of them",
          *options.batch_size, ranks, total, options.global_batch));
    options.global_batch = total;
    return;
  }
  const std::int64_t total = options.global_batch;
  if (total % ranks != 0) {
    const std::int64_t below = total / ranks * ranks;
    throw InvalidArgument(fmt::format(
        "a global batch of {} cannot be divided over {} ranks: use -n with one "
        "of {}, or --global-batch-size {}{}",
        total, ranks, divisors_up_to(total, std::max(ranks, kMostDefaultRanks)),
        below > 0 ? fmt::format("{} or ", below) : "", below + ranks));
  }
  options.batch_size = total / ranks;
}

void check_hook(const TrainOptions& options) {
  if (options.hook == "none") return;
  const char* other = options.sharded          ? "--sharded"
                      : options.logical_shards ? "--logical-shards"
                                               : nullptr;
  if (other != nullptr)
    throw InvalidArgument(fmt::format(
        "--hook {} would never be asked with {}, which averages gradients "
        "itself: leave out one of the two",
        options.hook, other));
}

// A name of kAugmentations, or transforms.
void check_augmentation(const std::string& augment) try {
  const auto names = names_in(kAugmentations);
  const bool is_name = std::ranges::find(names, augment) != names.end();
  if (!augment.empty() && !is_name) Compose transforms(augment);
} catch (const InvalidArgument&) {
  // A word that is no transform was meant as a name.
  const auto transforms = transforms::known_names();
  if (augment.find_first_of("(|") != std::string::npos ||
      std::ranges::find(transforms, augment) != transforms.end())
    throw;
  throw InvalidArgument(fmt::format(
      "{}; or transforms with their arguments, such as \"random_crop(32, "
      "padding=4) | hflip\", of: {}",
      unknown_name("augmentation", augment, names_in(kAugmentations)),
      fmt::join(transforms, ", ")));
}

void check_model_flags(const TrainOptions& options) {
  if (options.given.contains("--hidden") && options.model != "mlp")
    throw InvalidArgument(fmt::format(
        "--hidden is for --model mlp; the model is {}", options.model));
  const bool residual = known_model(options.model).residual;
  const auto models = [](bool are_residual) {
    return list_names(kModels, "and", [=](const KnownModel& known) {
      return known.residual == are_residual;
    });
  };
  if (options.dropout.value_or(0) != 0 && residual)
    throw InvalidArgument(
        fmt::format("--dropout is for --model {}; {} has none", models(false),
                    options.model));
  if (options.given.contains("--stem") && !residual)
    throw InvalidArgument(fmt::format("--stem is for --model {}; {} has none",
                                      models(true), options.model));
}

void check_data_flags(TrainOptions& options) {
  check_augmentation(options.augment);
  const bool is_folder = options.dataset == kImageFolder;
  if (is_folder && options.data_dir.empty())
    throw InvalidArgument(
        fmt::format("--dataset {} needs --data-dir, the folder that holds "
                    "train/CLASS/IMAGE and val/CLASS/IMAGE",
                    kImageFolder));
  if (is_folder) return;
  for (const auto& [flag, reason] :
       {std::pair{"--image-size", "have one size"},
        std::pair{"--exact-pixels", "are no files of their own"},
        std::pair{"--max-broken", "are no files of their own"}})
    if (options.given.contains(flag))
      throw InvalidArgument(
          fmt::format("{} is for --dataset {}; the images of {} {}", flag,
                      kImageFolder, options.dataset, reason));
}

// Only the command checks the disk, because ranks may run on other hosts.
void check_weights(const TrainOptions& options, const RankPlace& place) {
  std::error_code unreadable;
  if (options.weights.empty() || place.world_size ||
      std::filesystem::exists(options.weights, unreadable))
    return;
  throw InvalidArgument(fmt::format(
      "there is no file \"{}\" for --weights: name a safetensors file of the "
      "model, or a folder of checkpoints",
      options.weights.string()));
}

void check_checkpoints(const TrainOptions& options) {
  const bool saves = !options.checkpoint_dir.empty();
  const char* needs_folder = options.checkpoint_every ? "--checkpoint-every"
                             : options.given.contains("--keep") ? "--keep"
                             : options.resume == "auto" ? "--resume auto"
                                                        : nullptr;
  if (!saves && needs_folder != nullptr)
    throw InvalidArgument(
        fmt::format("{} needs --checkpoint-dir, the folder of the checkpoints",
                    needs_folder));
  if ((saves || !options.resume.empty()) && options.hook == "post-local-sgd")
    throw InvalidArgument(
        "--hook post-local-sgd is not for checkpoints: each holds one model, "
        "and ranks have different ones between two averages");
}

// Without links, for comparing; nothing need exist.
std::filesystem::path place_of(const std::filesystem::path& path) {
  std::error_code unknown;  // the ranks report what cannot be looked at
  const auto place = std::filesystem::weakly_canonical(
      std::filesystem::absolute(path, unknown), unknown);
  return place.has_filename() ? place : place.parent_path();
}

// The folder of the checkpoints would make the model's name that of a folder,
// and the model would take the place of a checkpoint.
void check_output_spares_checkpoints(const TrainOptions& options) {
  constexpr std::string_view kStem = "checkpoint-";
  if (options.checkpoint_dir.empty()) return;
  const auto model = place_of(options.output);
  const auto folder = place_of(options.checkpoint_dir);
  if (model.empty() || folder.empty()) return;
  const std::string stem = model.stem();
  const bool is_checkpoint =
      stem.starts_with(kStem) &&
      number_in<std::int64_t>(std::string_view(stem).substr(kStem.size()));
  const bool is_of_folder = model.parent_path() == folder &&
                            (is_checkpoint || model.filename() == ".lock");
  const bool is_folder =
      std::ranges::mismatch(model, folder).in1 == model.end();
  if (is_of_folder || is_folder)
    throw InvalidArgument(
        fmt::format("--output {} belongs to the checkpoints of "
                    "--checkpoint-dir {}: give the model another name",
                    options.output.string(), options.checkpoint_dir.string()));
}

// The requirements of include/lockstep/torch/logical_shards.h in terms of
// flags.
void check_shards(TrainOptions& options) {
  if (!options.logical_shards) return;
  const auto shards = static_cast<unsigned>(*options.logical_shards);
  const auto ranks = static_cast<unsigned>(*options.ranks);
  if (!std::has_single_bit(shards))
    throw InvalidArgument(fmt::format(
        "--logical-shards {} is not a power of two: use {} or {}", shards,
        std::bit_floor(shards), std::uint64_t{std::bit_floor(shards)} * 2));
  if (!std::has_single_bit(ranks) || ranks > shards)
    throw InvalidArgument(fmt::format(
        "--logical-shards {} cannot be divided evenly over {} ranks in a "
        "balanced tree: use -n with a power of two of at most {}",
        shards, ranks, shards));
  if (options.global_batch % shards != 0)
    throw InvalidArgument(fmt::format(
        "a global batch of {} cannot be divided into {} logical shards: use "
        "--global-batch-size {}",
        options.global_batch, shards,
        (options.global_batch / shards + 1) * shards));
  if (options.accumulate != 1)
    throw InvalidArgument(
        "--accumulate is not for --logical-shards, which are micro-batches "
        "already: use more of them where memory is short");
  if (!options.threads) options.threads = 1;
}

// Options that a captured pass does not support.
void check_graph(const TrainOptions& options) {
  if (!options.cuda_graph) return;
  if (options.devices.device == "cpu")
    throw InvalidArgument(
        "--cuda-graph is for GPUs: add --device cuda, or leave it out");
  const std::array<std::pair<bool, const char*>, 11> others{{
      {options.strategy != "ddp", "--strategy"},
      {options.sharded, "--sharded"},
      {options.logical_shards.has_value(), "--logical-shards"},
      {options.accumulate != 1, "--accumulate"},
      {options.precision == "float16", "--precision float16"},
      {options.hook == "power-sgd", "--hook power-sgd"},
      {options.hook == "post-local-sgd", "--hook post-local-sgd"},
      {options.find_unused, "--find-unused"},
      {options.sync_batch_norm, "--sync-bn"},
      {options.checks.consistency_steps != 0, "--check-consistency"},
      {options.checks.fingerprint_every != 0, "--fingerprint-every"},
  }};
  for (const auto& [given, flag] : others)
    if (given)
      throw InvalidArgument(
          fmt::format("--cuda-graph is not for {}, with which passes differ or "
                      "the host has a part in them: leave out one of the two",
                      flag));
}

}  // namespace

void add_train_options(CLI::App& command, TrainOptions& options) {
  add_run_flags(command, options);
  add_strategy_flag(command, options);
  add_device_flags(command, options.devices, "compute on");
  add_data_flags(command, options);
  add_model_flags(command, options);
  add_step_flags(command, options);
  add_optimizer_flags(command, options);
  add_schedule_flags(command, options);
  add_parallel_flags(command, options);
  add_checkpoint_flags(command, options);
  add_replica_flags(command, options);
  for (CLI::Option* option : command.get_options())
    option->each([&given = options.given, flag = option->get_name()](
                     const std::string&) { given.insert(flag); });
}

void complete_train_options(TrainOptions& options, const RankPlace& place) {
  complete_device_flags(options.devices, options.ranks,
                        place_of_ranks(options, place));
  check_compute_flags(options.compute, options.devices);
  check_graph(options);
  choose_ranks(options, place);
  check_strategy_flag(options);
  divide_batch(options);
  check_hook(options);
  check_shards(options);
  check_checkpoints(options);
  check_weights(options, place);
  check_data_flags(options);
  check_replica_flags(options);
  if (options.accumulate > *options.batch_size)
    throw InvalidArgument(fmt::format(
        "--accumulate {} is more than the {} images that each of {} ranks has "
        "of a batch: use at most {}, or a larger --global-batch-size",
        options.accumulate, *options.batch_size, *options.ranks,
        *options.batch_size));
  check_model_flags(options);
  check_schedule_flags(options);
  if (options.output.empty())
    options.output =
        fmt::format("{}-{}.safetensors", options.model, options.dataset);
  check_output_spares_checkpoints(options);
  check_spares_data(options.output, options.data_dir);
}

TrainOptions parse_train_options(std::span<const char* const> arguments,
                                 const RankPlace& place) {
  TrainOptions options;
  options.log_dir =
      parse_worker_flags("lockstep train", arguments, [&](CLI::App& command) {
        add_train_options(command, options);
      }).log_dir;
  complete_train_options(options, place);
  return options;
}

}  // namespace lockstep
