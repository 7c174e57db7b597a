// The strategies of a run, by name: each determines the replicas of a process,
// and with what each replica trains.
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
// All get the same samples, and arrive at the same weights up to rounding.
//
// Threads: for_each_replica() is called by every process of the group.
// Errors:  InvalidArgument for options that do not fit together, with the
//          reason and what to use instead; those of making models, optimizers
//          and groups.
// See docs/design/train.md and docs/guides/strategies.md.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "apps/trainer/loop/optimizers.h"
#include "apps/trainer/loop/trainer.h"
#include "apps/trainer/model/models.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/data/image_dataset.h"
#include "lockstep/torch/distributed_data_parallel.h"

namespace lockstep {

// A replica of a run, and what it trains with.
struct TrainedReplica {
  // All replicas, one rank each; for data-parallel a group of one.
  std::shared_ptr<ProcessGroup> group;
  int local_replica = 0;         // among those of this process
  at::Device device = at::kCPU;  // of the model
  // Reduces gradients in backward(), or leaves that to the optimizer.
  DistributedDataParallel<Classifier>& model;
  ClippingOptimizer optimizer;
  // False where its parameters, or its optimizer's state, belong to another
  // replica.
  bool owns_parameters = true;
  bool owns_optimizer = true;
  // Replaces model(images) as the forward pass, if set.
  std::function<at::Tensor(const at::Tensor&)> forward{};
  // The factor of its mean loss for backward(): 1 where gradients are averaged,
  // 1/n where those of n replicas add up.
  double loss_share = 1;
  // data-parallel's device slots: the models that compute. A batch is the
  // shares of slots.size() ranks, concatenated.
  std::vector<std::shared_ptr<Classifier>> slots{};

  // The number of ranks whose shares of a batch this replica has.
  int shares() const {
    return slots.empty() ? 1 : static_cast<int>(slots.size());
  }
};

// InvalidArgument for options that do not fit the strategy or the number of
// processes.
void check_strategy(const TrainerOptions& options, int processes);

// The name of the hook for a replica's model: "none" where the optimizer
// compresses. Valid as long as `options`.
std::string_view hook_of_model(const TrainerOptions& options);

// Calls train(replica) for each replica of this process, in its thread, and
// returns when all have ended; rethrows the exception of one of them.
// `processes` is the group of all training processes.
void for_each_replica(const TrainerOptions& options,
                      const ImageDataset& dataset,
                      const std::shared_ptr<ProcessGroup>& processes,
                      const std::function<void(TrainedReplica&)>& train);

}  // namespace lockstep
