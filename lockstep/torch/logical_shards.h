// Training whose bits do not depend on the number of ranks: 1, 2, 4, … ranks
// end with the same weights.
//
// The global batch is cut into shards, as many on any number of ranks, and each
// shard has forward and backward passes of its own. Gradients are added in one
// balanced tree over the shards, ((0+1)+(2+3))+…, of which each rank computes
// the branch that it has the leaves of, and the group the top. A rank needs
// memory for a few sums besides its gradients, one a level of its branch.
//
//     lockstep::LogicalShards shards(model, {.count = 8, .seed = 1});
//     …
//     shards.run([&](const lockstep::LogicalShard& shard) {
//       torch::manual_seed(shard.seed);      // where passes draw numbers
//       const auto [input, target] = part_of_batch(step, shard.index);
//       loss_of(model->forward(input), target).backward();
//     });
//     optimizer.step();      // .grad is the average over all shards
//
// The module is not to be wrapped in a DistributedDataParallel, unless that
// leaves gradients alone (average_gradients = false) and does not broadcast
// buffers: this takes its place. So nothing is reduced during a backward pass;
// that, and small passes, are the price of equal bits.
//
// What must not depend on the number of ranks either, and is the caller's: the
// samples of a shard; the compute threads of a rank (at::set_num_threads(1));
// random numbers; the processor, or the kind of GPU, and the libraries. On a
// GPU kernels must be deterministic, which not all of LibTorch's and cuDNN's
// are by default; sums over ranks are made by tree_reduce(). Buffers, as
// BatchNorm has them, are this class's: every shard starts from the same, and
// what they become is the average over the shards, or of integers the maximum.
//
// Threads: single-threaded. Every rank makes it and calls run() at the same
//          point of the program.
// Errors:  when it is made: InvalidArgument for numbers of shards and ranks
//          that make no tree, for a module without parameters to train and one
//          whose gradients are averaged already; Mismatch on every rank when
//          their modules or options differ. From run(): InvalidArgument on
//          every rank for a sparse gradient on one. What a pass throws, after
//          which the group is aborted, so that no other rank waits for this
//          one. What ProcessGroup's operations throw.
// See docs/guides/reproducibility.md.
#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/torch/autograd_join.h"

namespace lockstep {

struct LogicalShardsOptions {
  // The ranks that train together; default_group() when empty.
  std::shared_ptr<ProcessGroup> group{};
  // Of all ranks together: a power of two, as the number of ranks must be,
  // which it is a multiple of.
  int count = 1;
  // Of LogicalShard::seed.
  std::uint64_t seed = 0;
};

struct LogicalShard {
  int index = 0;  // among all ranks' shards
  // For the random numbers of this pass: another one for each shard and step.
  std::uint64_t seed = 0;
};

// Throws InvalidArgument unless `count` shards on `ranks` ranks make a balanced
// tree of which each rank has a branch.
void check_logical_shards(int count, int ranks);

class LogicalShards {
 public:
  // Makes all ranks' parameters and buffers rank 0's.
  LogicalShards(std::shared_ptr<const torch::nn::Module> module,
                const LogicalShardsOptions& options);

  // Calls `pass` for each shard of this rank, in order; it runs forward and
  // backward passes, of which the loss is a mean over the shard. Then every
  // .grad is the average over all shards, in which those that did not use a
  // parameter count as zero; one that no shard used has no .grad. What .grad
  // held before is dropped.
  void run(const std::function<void(const LogicalShard&)>& pass);

  int count() const { return count_; }
  // This rank's are first(), first() + 1, … first() + own_count() - 1.
  int first() const { return group_->rank() * own_count(); }
  int own_count() const { return count_ / group_->size(); }

  // How often run() was called, on which seeds depend; to be set by whoever
  // goes on from a checkpoint.
  std::int64_t step() const { return step_; }
  void set_step(std::int64_t step) { step_ = step; }

 private:
  struct Marks;

  void run_pass(const std::function<void(const LogicalShard&)>& pass,
                int index);
  // What is summed over the shards: gradients, then buffers.
  std::vector<at::Tensor> leaves_of_pass(const std::vector<at::Tensor>& buffers,
                                         Marks& marks);
  void average(std::vector<at::Tensor> sum,
               const std::vector<at::Tensor>& buffers, Marks& marks);
  void check_dense(const Marks& marks) const;

  std::shared_ptr<const torch::nn::Module> module_;
  std::shared_ptr<ProcessGroup> group_;
  int count_;
  std::uint64_t seed_;
  std::int64_t step_ = 0;
  std::vector<at::Tensor> parameters_;
  std::vector<std::string> names_;
  // Claims the parameters, lest somebody else reduces their gradients too.
  std::optional<GradientHooks> claim_;
};

}  // namespace lockstep
