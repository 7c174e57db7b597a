#include "apps/train/strategy_flags.h"

#include <fmt/format.h>

#include <algorithm>

#include "lockstep/base/error.h"
#include "src/base/tf_config.h"

namespace lockstep {
namespace {

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

}  // namespace lockstep
