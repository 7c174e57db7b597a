// The part of DistributedDataParallel that does not depend on the module's
// type: one rank's copy of the model, kept equal to the other ranks' copies.
//
// Threads: single-threaded.
// Errors:  see DistributedDataParallel.
#pragma once

#include <torch/nn/module.h>

#include <cstddef>
#include <memory>
#include <vector>

#include "lockstep/comm/group/process_group.h"
#include "lockstep/torch/ddp/module_snapshot.h"
#include "lockstep/torch/reducer/join_coordinator.h"
#include "lockstep/torch/reducer/reducer.h"

namespace lockstep {

struct DistributedDataParallelOptions {
  // The ranks that train together; default_group() when empty.
  std::shared_ptr<ProcessGroup> group{};
  // Gradients are reduced in buckets that are closed at these sizes; the first
  // is small, so that reducing starts early.
  std::size_t first_bucket_bytes = std::size_t{1} << 20;
  std::size_t bucket_bytes = std::size_t{25} << 20;
  // Whether rank 0's buffers, such as BatchNorm's running statistics, are
  // copied to all ranks before each forward pass in training. Passes in
  // evaluation mode never copy them: see broadcast_buffers() of the wrapper.
  bool broadcast_buffers = true;
  // Lets a pass leave parameters unused. A parameter that no rank used keeps
  // its .grad; one that some ranks used gets the average over all ranks, in
  // which the other ranks count as zero. Costs one operation per pass with
  // unused parameters.
  bool find_unused_parameters = false;
  // Promises that all passes have the graph of the first: each rank uses the
  // same parameters equally often. Allows parameters that stay unused, and
  // parts of the graph that run backward() inside backward() and share
  // parameters, as checkpoints do. The first pass does not overlap
  // communication.
  bool static_graph = false;
  // Whether .grad may be memory that the next pass overwrites. When false,
  // .grad stays where autograd put it, at the price of a copy per pass and
  // twice the memory.
  bool gradient_as_bucket_view = true;
  // Whether backward() averages gradients; when false, .grad is this rank's
  // own, for an optimizer that averages gradients itself.
  bool average_gradients = true;
  // Whether a group of one reduces its gradients and broadcasts its buffers
  // too, as PyTorch's does, though no number changes: for benchmarks and tests
  // with one device.
  bool reduce_alone = false;
  // Whether sparse gradients, of embeddings for example, are made dense as they
  // arrive in .grad, in a group of one too; without it they are reduced as
  // indices and values, and stay sparse. The first pass that brings one of a
  // parameter sends it as a dense one, through a communication hook too; hooks
  // do not see the later ones.
  bool sparse_as_dense = false;
  // How backward() combines the ranks' gradients: kAverage, or kSum, for losses
  // that are divided by the global batch. With a sum the program calls
  // zero_grad() before each reduced pass: earlier contents of .grad would count
  // once per rank. no_sync() works as usual.
  ReduceOp op = ReduceOp::kAverage;
};

class Replica {
 public:
  // Checks that all ranks have the same model and gives them rank 0's
  // parameters and buffers.
  Replica(std::shared_ptr<const torch::nn::Module> module,
          const DistributedDataParallelOptions& options);

  Replica(const Replica&) = delete;
  Replica& operator=(const Replica&) = delete;

  // Copies rank 0's buffers to all ranks; within join() those of the last rank
  // that has data. A collective; ranks without data take part as in a forward
  // pass.
  void broadcast_buffers();

  // Call it before every forward pass. With gradients on it checks that the
  // module is the one that was wrapped, and in training mode it copies rank 0's
  // buffers to all ranks, unless the pass stays local. Otherwise it does
  // nothing and does not wait for other ranks.
  void before_forward();

  NoSync no_sync() const { return reducer_.no_sync(); }

  // InvalidArgument also where gradients are not averaged in backward().
  void register_comm_hook(std::shared_ptr<CommHook> hook);

  // For Join. begin_join() begins a scope. shadow_the_others() takes part in
  // collectives until no rank has data, and then copies the model of the last
  // rank with data to all.
  void begin_join(const JoinOptions& options);
  void shadow_the_others();
  // Ends the scope; must be called in any case.
  void end_join() noexcept;

  const std::shared_ptr<ProcessGroup>& group() const { return group_; }

 private:
  void exchange_buffers();

  std::shared_ptr<const torch::nn::Module> module_;
  std::shared_ptr<ProcessGroup> group_;
  Reducer reducer_;
  std::vector<at::Tensor> buffers_;
  bool broadcasts_buffers_;  // before a forward pass
  ModuleSnapshot wrapped_;
  bool averages_;      // gradients, in backward()
  bool communicates_;  // there are peers, or reduce_alone
  std::shared_ptr<JoinCoordinator> join_coordinator_;  // within a Join
};

}  // namespace lockstep
