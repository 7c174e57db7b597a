#include "apps/trainer/loop/strategies.h"

#include <c10/core/DeviceGuard.h>
#include <c10/core/GradMode.h>

#include <exception>
#include <optional>
#include <string>
#include <utility>

#include "apps/trainer/loop/trainer_options.h"
#include "apps/trainer/loop/training_device.h"
#include "apps/trainer/model/precision.h"
#include "lockstep/base/error.h"
#include "lockstep/torch/data_parallel.h"
#include "lockstep/torch/gpu_pass.h"
#include "lockstep/torch/strategies.h"
#include "lockstep/torch/sync_batch_norm.h"
#include "src/torch/ddp/replicate.h"
#include "src/torch/device/device_streams.h"
#include "src/torch/gradient/pass_errors.h"

namespace lockstep {
namespace {

using Model = DistributedDataParallel<Classifier>;
using Train = std::function<void(TrainedReplica&)>;

[[noreturn]] void refuse(const TrainerOptions& options,
                         const std::string& problem, const std::string& next) {
  throw InvalidArgument("cannot train: the strategy " + options.strategy + " " +
                        problem + "\n  next:    " + next);
}

void check_numbers(const TrainerOptions& options, int processes) {
  if (is_one_process(options.strategy)) {
    if (options.replicas < 1)
      refuse(options,
             "cannot have " + std::to_string(options.replicas) + " replicas",
             "use at least 1");
    if (processes != 1)
      refuse(options,
             "has all replicas in one process, but this is one of " +
                 std::to_string(processes),
             "start one process and set its number of replicas, or use "
             "multi-worker");
  } else if (options.replicas != 1) {
    refuse(options,
           "has one replica in each process, not " +
               std::to_string(options.replicas),
           "start one process per replica, or use mirrored");
  }
}

void check_device(const TrainerOptions& options) {
  if (options.compute.tf32 && options.device == "cpu")
    throw InvalidArgument(
        "cannot train: only GPUs support TF32"
        "\n  next:    train on cuda, or omit it");
}

// Horovod's compressions correspond to our hooks that round.
horovod::Compression compression_of(const TrainerOptions& options) {
  if (options.strategy != "horovod") return horovod::Compression::kNone;
  if (options.hook == "fp16") return horovod::Compression::kFp16;
  if (options.hook == "bf16") return horovod::Compression::kBf16;
  return horovod::Compression::kNone;
}

ModelOptions model_options(const TrainerOptions& options,
                           const ImageDataset& dataset) {
  return {.channels = dataset.channels,
          .height = dataset.height,
          .width = dataset.width,
          .classes = static_cast<std::int64_t>(dataset.class_names.size()),
          .hidden = options.hidden,
          .stem = parse_stem(options.stem),
          .dropout = options.dropout,
          .seed = options.seed};
}

// Every rank makes the same model; the wrapper copies rank 0's weights to all.
std::shared_ptr<Classifier> new_model(const TrainerOptions& options,
                                      const ImageDataset& dataset) {
  auto model = make_model(options.model, model_options(options, dataset));
  if (options.compute.channels_last) store_channels_last(*model);
  return model;
}

std::optional<at::Device> if_gpu(at::Device device) {
  if (device.is_cpu()) return std::nullopt;
  return device;
}

MemoryUser memory_user(const TrainerOptions& options, ProcessGroup& group,
                       at::Device device) {
  const int processes = is_one_process(options.strategy) ? 1 : group.size();
  return {.group = group,
          .device = device,
          .what = "training",
          .next = memory_advice(options, processes)};
}

// It calls collectives, so it runs in the replica's own thread.
void train_one(const TrainerOptions& options, TrainedReplica replica,
               const Train& train) {
  if (options.sync_batch_norm &&
      convert_sync_batch_norm(*replica.model, replica.group) == 0)
    throw InvalidArgument("cannot train: the model " + options.model +
                          " has no batch normalization to synchronize");
  // Only this call informs ranks that wait for this replica in those groups.
  const auto abort = [&](const std::string& why) {
    abort_groups_of_batch_norms(
        *replica.model,
        "rank " + std::to_string(replica.group->rank()) + " failed: " + why);
  };
  try {
    tell_out_of_memory(memory_user(options, *replica.group, replica.device),
                       [&] { train(replica); });
  } catch (...) {
    abort(text_of_exception(std::current_exception()));
    throw;
  }
}

// On the CPU averaging within the step is one pass over memory, and the
// fastest.
ShardedGradients sharded_gradients(const TrainerOptions& options,
                                   at::Device device) {
  if (options.logical_shards) return ShardedGradients::kAveragedBefore;
  return device.is_cpu() ? ShardedGradients::kAveragedInStep
                         : ShardedGradients::kReducedToOwners;
}

// Whether gradients are reduced in backward(), and not later by the optimizer.
bool reduces_in_backward(const TrainerOptions& options, at::Device device) {
  if (options.logical_shards || options.strategy == "horovod") return false;
  return !options.sharded || sharded_gradients(options, device) ==
                                 ShardedGradients::kReducedToOwners;
}

void train_in_processes(const TrainerOptions& options,
                        const ImageDataset& dataset,
                        const std::shared_ptr<ProcessGroup>& group,
                        const Train& train) {
  const at::Device device = training_device(options.device);
  if (options.logical_shards && !device.is_cpu()) use_deterministic_kernels();
  const c10::OptionalDeviceGuard guard(if_gpu(device));
  std::optional<StreamOfItsOwn> stream;  // a capture covers only this stream
  if (options.cuda_graph) stream.emplace(device);
  const auto module = new_model(options, dataset);
  module->to(device);
  Model model(module,
              {.group = group,
               .broadcast_buffers = !options.logical_shards,
               .find_unused_parameters = options.find_unused,
               .average_gradients = reduces_in_backward(options, device)});
  OptimizerRanks ranks{.sharded_gradients = sharded_gradients(options, device)};
  if (options.sharded) ranks.sharded_over = group;
  if (options.strategy == "horovod") {
    ranks.distributed_over = group;
    ranks.named_parameters = model.named_parameters();
    ranks.compression = compression_of(options);
  }
  ClippingOptimizer optimizer =
      make_optimizer(options, model.parameters(), ranks);
  if (optimizer.gradient_hook)
    model.register_comm_hook(optimizer.gradient_hook);
  train_one(options,
            {.group = group,
             .device = device,
             .model = model,
             .optimizer = std::move(optimizer)},
            train);
  if (!stream) return;
  stream.reset();
  // The caller owns the model now, and reads it on its own stream.
  keep_for_current_stream(parameters_and_buffers(*module));
}

void train_by(strategies::Strategy& strategy, const TrainerOptions& options,
              const ImageDataset& dataset, const Train& train) {
  const auto models = strategy.create([&](const strategies::ReplicaContext&) {
    return new_model(options, dataset);
  });
  strategy.run([&](const strategies::ReplicaContext& here) {
    Model& model = models[here];
    const bool central = options.strategy == "central";
    const bool steps = !central || here.local_replica == 0;
    train_one(options,
              {.group = here.group,
               .local_replica = here.local_replica,
               .device = here.device,
               .model = model,
               .optimizer = make_optimizer(
                   options, model.parameters(),
                   {.central_in = central ? here.group : nullptr}),
               .owns_parameters = steps || !here.device.is_cpu(),
               .owns_optimizer = steps,
               .loss_share = 1.0 / here.num_replicas_in_sync()},
              train);
  });
}

void train_on_slots(const TrainerOptions& options, const ImageDataset& dataset,
                    const std::shared_ptr<ProcessGroup>& group,
                    const std::vector<at::Device>& devices,
                    const Train& train) {
  std::vector<std::shared_ptr<Classifier>> slots;
  const auto next_slot = [&] {
    return slots.emplace_back(new_model(options, dataset));
  };
  const c10::OptionalDeviceGuard guard(if_gpu(devices[0]));
  const auto module = new_model(options, dataset);
  data_parallel::DataParallel<Classifier> divided(
      module, {.devices = devices, .factory = next_slot});
  Model model(module, {.group = group});  // a group of one: averages nothing
  train_one(
      options,
      {.group = group,
       .device = devices[0],
       .model = model,
       .optimizer = make_optimizer(options, model.parameters()),
       .forward = [&](const at::Tensor& images) { return divided(images); },
       .slots = slots},
      train);
}

void train_by_name(const TrainerOptions& options, const ImageDataset& dataset,
                   const std::shared_ptr<ProcessGroup>& processes,
                   const std::vector<at::Device>& devices, const Train& train) {
  const strategies::StrategyOptions threads{.devices = devices,
                                            .timeout = processes->timeout()};
  switch (known_strategy(options.strategy).value) {
    case StrategyName::kDdp:
    case StrategyName::kHorovod:
      return train_in_processes(options, dataset, processes, train);
    case StrategyName::kDataParallel:
      return train_on_slots(options, dataset, processes, devices, train);
    case StrategyName::kMirrored: {
      strategies::MirroredStrategy strategy(threads);
      return train_by(strategy, options, dataset, train);
    }
    case StrategyName::kCentral: {
      strategies::CentralStorageStrategy strategy(threads);
      return train_by(strategy, options, dataset, train);
    }
    case StrategyName::kMultiWorker: {
      strategies::MultiWorkerMirroredStrategy strategy(processes, devices[0]);
      return train_by(strategy, options, dataset, train);
    }
  }
}

}  // namespace

void check_strategy(const TrainerOptions& options, int processes) {
  check_numbers(options, processes);
  check_device(options);
}

std::string_view hook_of_model(const TrainerOptions& options) {
  if (compression_of(options) != horovod::Compression::kNone) return "none";
  return options.hook;
}

void for_each_replica(const TrainerOptions& options,
                      const ImageDataset& dataset,
                      const std::shared_ptr<ProcessGroup>& processes,
                      const Train& train) {
  if (options.compute.tf32) allow_tf32();
  const auto devices = training_devices(options.device, options.replicas);
  // For errors while making models; training reports more details itself.
  tell_out_of_memory(memory_user(options, *processes, devices[0]), [&] {
    train_by_name(options, dataset, processes, devices, train);
  });
}

}  // namespace lockstep
