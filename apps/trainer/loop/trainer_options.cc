#include "apps/trainer/loop/trainer_options.h"

#include <algorithm>
#include <string>

#include "apps/options/training_conflicts.h"
#include "apps/trainer/loop/run_checkpoints.h"
#include "apps/trainer/loop/strategies.h"
#include "apps/trainer/loop/training_device.h"
#include "lockstep/base/error.h"

namespace lockstep {
namespace {

[[noreturn]] void refuse_options(const std::string& problem) {
  throw InvalidArgument("cannot train: " + problem);
}

void check_batch(const TrainerOptions& options, int ranks) {
  const std::int64_t batch = options.global_batch;
  if (batch < 1)
    refuse_options("a global batch of " + std::to_string(batch) +
                   " has no images; it must be at least 1");
  if (batch % ranks != 0)
    refuse_options("a global batch of " + std::to_string(batch) +
                   " cannot be divided evenly over " + std::to_string(ranks) +
                   " ranks");
  const std::int64_t share = batch / ranks;
  if (options.accumulate > share)
    refuse_options("a rank's share of the global batch, " +
                   std::to_string(share) + " images, cannot be divided into " +
                   std::to_string(options.accumulate) + " micro-batches");
  if (const int shards = options.logical_shards.value_or(ranks);
      shards < 1 || batch % shards != 0)
    refuse_options("a global batch of " + std::to_string(batch) +
                   " cannot be divided evenly into " + std::to_string(shards) +
                   " logical shards");
}

void check_data(const TrainerOptions& options, const TrainingData& data,
                int ranks) {
  const std::int64_t images = data.train->size();
  // Of the batches that the ranks, or logical shards, can divide.
  const std::int64_t parts = options.logical_shards.value_or(ranks);
  const std::int64_t most = images / parts * parts;
  if (images < options.global_batch)
    refuse_options("the training set has " + std::to_string(images) +
                   " images, fewer than one global batch of " +
                   std::to_string(options.global_batch) + "\n  next:    " +
                   (most > 0 ? "give --global-batch-size " +
                                   std::to_string(most) + " or less"
                             : "give -n 1 and --global-batch-size 1") +
                   ", or more images");
  if (data.test->size() < 1) refuse_options("the test set has no images");
  const auto [channels, height, width] = data.train->shape();
  if (data.test->shape() != data.train->shape())
    refuse_options("augmented images have " + std::to_string(height) + " x " +
                   std::to_string(width) + " pixels, but test images " +
                   std::to_string(data.test->shape()[1]) + " x " +
                   std::to_string(data.test->shape()[2]) +
                   "\n  next:    end the transforms of --augment with a crop "
                   "to that size");
}

}  // namespace

void check_trainer_options(const TrainerOptions& options,
                           const TrainingData& data, int processes) {
  check_strategy(options, processes);
  check_conflicts(options);
  check_batch(options, processes * options.replicas);
  check_data(options, data, processes * options.replicas);
  training_devices(options.device, options.replicas);
  check_checkpoint_options(options);
  if (options.epochs < 1 || options.evaluate_every < 1 ||
      options.log_interval < 1)
    refuse_options(
        "the numbers of epochs, of epochs between evaluations and of steps "
        "between reports must be at least 1");
}

std::string memory_advice(const TrainerOptions& options, int processes) {
  const int ranks = processes * options.replicas;
  const std::int64_t share = options.global_batch / ranks;
  const bool graph = options.cuda_graph;
  std::string advice = "try ";
  if (graph) advice += "leaving out --cuda-graph, ";
  if (options.accumulate < share && !graph && !options.logical_shards)
    advice +=
        "--accumulate " +
        std::to_string(std::min<std::int64_t>(2 * options.accumulate, share)) +
        ", ";
  if (share > 1)
    advice += "a --global-batch-size below " +
              std::to_string(options.global_batch) + ", ";
  if (options.precision == "float32") advice += "--precision bfloat16, ";
  if (!options.sharded && options.strategy == "ddp" && options.hook == "none" &&
      !graph && ranks > 1)
    advice += "--sharded, ";
  return advice + "a smaller model or larger GPUs";
}

}  // namespace lockstep
