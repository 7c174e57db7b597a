#include "apps/train/strategy_flags.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <string_view>

#include "apps/job/flags.h"
#include "lockstep/base/error.h"
#include "src/base/name_table.h"
#include "src/base/tf_config.h"

namespace lockstep {
namespace {

// The strategies that make this of the ranks.
std::string strategies_of(RanksAre ranks) {
  return list_names(kStrategies, "or", [ranks](const KnownStrategy& known) {
    return known.ranks == ranks;
  });
}

[[noreturn]] void refuse(const TrainOptions& options, std::string_view flag,
                         std::string_view why, std::string_view instead) {
  throw InvalidArgument(fmt::format("{} is not for --strategy {}, {}: {}", flag,
                                    options.strategy, why, instead));
}

// The number of workers in TF_CONFIG, for a strategy that uses it.
std::optional<int> workers_of_tf_config(const TrainOptions& options,
                                        const RankPlace& place) {
  if (options.strategy != "multi-worker" || !place.lookup) return std::nullopt;
  const auto config = read_tf_config(place.lookup);
  if (!config) return std::nullopt;
  if (options.ranks.value_or(config->world_size) != config->world_size)
    throw InvalidArgument(fmt::format(
        "-n is {}, but TF_CONFIG names {} workers: leave out one of the two",
        *options.ranks, config->world_size));
  return config->world_size;
}

void choose_threads_of_one_process(TrainOptions& options,
                                   const RankPlace& place) {
  if (const int processes = place.world_size.value_or(1); processes != 1)
    throw InvalidArgument(fmt::format(
        "--strategy {} has all ranks in one process, but this program was "
        "started as one of {}: start it once, with -n {}, or use --strategy "
        "multi-worker",
        options.strategy, processes, processes));
  if (!options.ranks) options.ranks = default_ranks(place.cores);
  options.replicas = *options.ranks;
}

}  // namespace

void add_strategy_flag(CLI::App& command, TrainOptions& options) {
  command
      .add_option(
          "--strategy", options.strategy,
          fmt::format("Frontend: {} (ranks are processes), {} (threads of one "
                      "process), {} (device slots of one rank)",
                      strategies_of(RanksAre::kProcesses),
                      strategies_of(RanksAre::kThreads),
                      strategies_of(RanksAre::kDeviceSlots)))
      ->check(one_of("strategy", names_in(kStrategies)))
      ->capture_default_str();
}

RankPlace place_of_ranks(const TrainOptions& options, RankPlace place) {
  if (is_one_process(options.strategy)) place.world_size.reset();
  if (const auto workers = workers_of_tf_config(options, place))
    place.world_size = workers;
  return place;
}

void choose_ranks(TrainOptions& options, const RankPlace& place) {
  if (is_one_process(options.strategy))
    return choose_threads_of_one_process(options, place);
  if (const auto workers = workers_of_tf_config(options, place)) {
    if (!options.devices.gpus.empty())
      throw InvalidArgument(
          "--gpus is not for the workers of TF_CONFIG, each of which computes "
          "on the first GPU that it sees: use --device cuda, and "
          "CUDA_VISIBLE_DEVICES to choose another");
    options.ranks = workers;
    return;
  }
  options.ranks = settle_ranks(
      options.ranks, place,
      std::min(default_ranks(place.cores),
               options.logical_shards.value_or(kMostDefaultRanks)));
}

void check_strategy_flag(const TrainOptions& options) {
  if (options.strategy == "ddp") return;
  constexpr std::string_view kUseDdp = "use --strategy ddp, or leave it out";
  constexpr std::string_view kAverages = "which averages gradients itself";
  if (options.sharded) refuse(options, "--sharded", kAverages, kUseDdp);
  if (options.logical_shards)
    refuse(options, "--logical-shards", kAverages, kUseDdp);
  const bool rounds = options.hook == "fp16" || options.hook == "bf16";
  if (options.strategy == "horovod" && options.hook != "none" && !rounds)
    refuse(options, "--hook " + options.hook,
           "whose compressions are fp16 and bf16",
           "use one of them, or --strategy ddp");
  if (options.strategy != "horovod" && options.hook != "none")
    refuse(options, "--hook", "because hooks belong to DistributedDataParallel",
           kUseDdp);
  if (options.strategy != "data-parallel") return;
  const char* flag =
      options.sync_batch_norm                ? "--sync-bn"
      : options.checks.consistency_steps > 0 ? "--check-consistency"
      : options.checks.fingerprint_every > 0 ? "--fingerprint-every"
                                             : nullptr;
  if (flag != nullptr)
    refuse(options, flag, "whose device slots are not ranks",
           "use --strategy mirrored");
}

}  // namespace lockstep
