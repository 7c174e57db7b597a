// The ways in by which a run trains, by name: who the replicas of a process
// are, and what each of them trains with.
//
//   ddp            a replica in each process; DistributedDataParallel averages
//                  their gradients
//   horovod        the same, but DistributedOptimizer averages
//   multi-worker   a replica in each process: MultiWorkerMirroredStrategy
//   mirrored       replicas are threads of one process: MirroredStrategy
//   central        the same, with one optimizer that steps and, on the CPU, one
//                  memory for the parameters: CentralStorageStrategy
//   data-parallel  one process whose batches DataParallel divides over device
//                  slots
//
// All get the same samples, and arrive at the same weights but for rounding.
//
// Threads: for_each_replica() is called by every process of the group.
// Errors:  InvalidArgument for what does not go together, saying why and what
//          to use instead; what making models, optimizers and groups throws.
// See docs/design/train.md and docs/guides/strategies.md.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/data/image_dataset.h"
#include "lockstep/torch/distributed_data_parallel.h"
#include "lockstep/train/models.h"
#include "lockstep/train/optimizers.h"
#include "lockstep/train/trainer.h"

namespace lockstep {

// What a replica of a run trains with.
struct TrainedReplica {
  // Of all replicas, each of which is a rank; of one for data-parallel.
  std::shared_ptr<ProcessGroup> group;
  int local_replica = 0;         // among those of this process
  at::Device device = at::kCPU;  // of the model
  // Reduces gradients in backward(), or leaves that to the optimizer.
  DistributedDataParallel<Classifier>& model;
  ClippingOptimizer optimizer;
  // Whether its parameters, and its optimizer's state, are not another one's.
  bool owns_parameters = true;
  bool owns_optimizer = true;
  // A pass that is not model(images), where there is one.
  std::function<at::Tensor(const at::Tensor&)> forward{};
  // Of its mean loss, what backward() begins with: 1 where gradients are
  // averaged, 1/n where those of n replicas add up.
  double loss_share = 1;
  // data-parallel's device slots: the models that compute. A batch is the
  // shares of so many ranks, one after another.
  std::vector<std::shared_ptr<Classifier>> slots{};

  // Ranks whose share of a batch this one has.
  int shares() const {
    return slots.empty() ? 1 : static_cast<int>(slots.size());
  }
};

// The names above.
std::span<const std::string_view> known_strategies();

// Refuses options that do not fit the strategy, or the number of processes.
void check_strategy(const TrainerOptions& options, int processes);

// The hook that a replica's model is to have: none where it is the optimizer
// that compresses. Valid as long as `options`.
std::string_view hook_of_model(const TrainerOptions& options);

// Calls train(replica) for each replica of this process, in its thread, and
// returns when all have ended; throws what it threw on one of them.
// `processes` is the group of all that train.
void for_each_replica(const TrainerOptions& options,
                      const ImageDataset& dataset,
                      const std::shared_ptr<ProcessGroup>& processes,
                      const std::function<void(TrainedReplica&)>& train);

}  // namespace lockstep
