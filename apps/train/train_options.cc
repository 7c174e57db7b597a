#include "apps/train/train_options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <bit>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>

#include "apps/job/data_flags.h"
#include "apps/job/device_flags.h"
#include "apps/job/flags.h"
#include "apps/job/launch_flags.h"
#include "apps/job/training_flag_parser.h"
#include "apps/options/training_conflicts.h"
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

// The flags that concern the command or the launch, and not the trainer.
void add_own_flags(CLI::App& command, TrainOptions& options) {
  command.option_defaults()->group(flag_groups::kRun);
  add_device_flags(command, options.devices, "compute on");
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
  command.add_flag("!--no-hints", options.hints,
                   "Print no next commands when the run is over");
  command.option_defaults()->group(flag_groups::kData);
  add_dataset_flag(command, options.dataset)->capture_default_str();
  add_data_dir_flag(command, options.data_dir);
  add_workers_flag(command, options.readers);
  command.option_defaults()->group(flag_groups::kSteps);
  command
      .add_option("--batch-size", options.batch_size,
                  "Images per step and rank, as in PyTorch")
      ->check(whole_number(1));
  command.option_defaults()->group("Options");
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

void check_replica_flags(const TrainOptions& options) {
  if (options.sync_batch_norm && !known_model(options.model).residual)
    throw InvalidArgument(fmt::format(
        "--sync-bn is for --model {}; {} has no batch normalization",
        list_names(kModels, "and",
                   [](const KnownModel& known) { return known.residual; }),
        options.model));
  if (!options.checks.show.empty() && options.checks.consistency_steps == 0)
    throw InvalidArgument(
        "--show-values is for --check-consistency: give that too");
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
  if (!options.threads) options.threads = 1;
}

void check_graph(const TrainOptions& options) {
  if (options.cuda_graph && options.devices.device == "cpu")
    throw InvalidArgument(
        "--cuda-graph is for GPUs: add --device cuda, or leave it out");
}

}  // namespace

void add_train_options(CLI::App& command, TrainOptions& options) {
  add_own_flags(command, options);
  add_flags(command, training_flags(options));
  for (CLI::Option* option : command.get_options())
    option->each([&given = options.given, flag = option->get_name()](
                     const std::string&) { given.insert(flag); });
}

void complete_train_options(TrainOptions& options, const RankPlace& place) {
  complete_device_flags(options.devices, options.ranks,
                        place_of_ranks(options, place));
  check_compute_flags(options.compute, options.devices);
  check_graph(options);
  check_conflicts(options);
  choose_ranks(options, place);
  divide_batch(options);
  check_shards(options);
  check_checkpoints(options);
  check_weights(options, place);
  check_data_flags(options);
  if (options.accumulate > *options.batch_size)
    throw InvalidArgument(fmt::format(
        "--accumulate {} is more than the {} images that each of {} ranks has "
        "of a batch: use at most {}, or a larger --global-batch-size",
        options.accumulate, *options.batch_size, *options.ranks,
        *options.batch_size));
  check_model_flags(options);
  check_replica_flags(options);
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
