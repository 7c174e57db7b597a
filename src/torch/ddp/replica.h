// The part of DistributedDataParallel that does not depend on the module's
// type: one rank's copy of the model, kept equal to the other ranks' copies.
//
// Threads: single-threaded.
// Errors:  see DistributedDataParallel.
#pragma once

#include <torch/nn/module.h>

#include <memory>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/torch/distributed_data_parallel.h"
#include "src/torch/compare/replica_watch.h"
#include "src/torch/ddp/module_snapshot.h"
#include "src/torch/gradient/join_coordinator.h"
#include "src/torch/gradient/reducer.h"

namespace lockstep {

class Replica {
 public:
  // Checks that all ranks have the same model and gives them rank 0's
  // parameters and buffers.
  Replica(std::shared_ptr<torch::nn::Module> module,
          const DistributedDataParallelOptions& options);

  Replica(const Replica&) = delete;
  Replica& operator=(const Replica&) = delete;

  // Copies rank 0's buffers to all ranks; within join() those of the last rank
  // that has data. A collective; ranks without data take part as in a forward
  // pass.
  void broadcast_buffers();

  // Call it before every forward pass. With gradients on it checks that the
  // module is the one that was wrapped, and in training mode it copies rank 0's
  // buffers to all ranks, those of now, unless the pass stays local. Otherwise
  // it does nothing and does not wait for other ranks.
  void before_forward();

  // Call it after a forward pass for each of its outputs: see
  // Reducer::watch_output().
  void watch_output(const at::Tensor& output);

  NoSync no_sync() const { return NoSync(reducer_->policy()); }

  // InvalidArgument also where gradients are not averaged in backward().
  void register_comm_hook(std::shared_ptr<CommHook> hook);

  // For Join. begin_join() begins a scope. shadow_the_others() takes part in
  // collectives until no rank has data, and then copies the model of the last
  // rank with data to all.
  void begin_join(const JoinOptions& options);
  void shadow_the_others();
  // Ends the scope; must be called in any case.
  void end_join() noexcept;

  const std::shared_ptr<torch::nn::Module>& module() const { return module_; }
  const std::shared_ptr<ProcessGroup>& group() const { return group_; }

 private:
  void exchange_buffers();
  void take_buffers_of(int root);

  std::shared_ptr<torch::nn::Module> module_;
  std::shared_ptr<ProcessGroup> group_;
  std::shared_ptr<Reducer> reducer_;
  bool broadcasts_buffers_;  // before a forward pass
  ModuleSnapshot wrapped_;
  std::shared_ptr<ReplicaWatch> watch_;
  bool averages_;      // gradients, in backward()
  bool communicates_;  // there are peers, or reduce_alone
  std::shared_ptr<JoinCoordinator> join_coordinator_;  // within a Join
};

}  // namespace lockstep
