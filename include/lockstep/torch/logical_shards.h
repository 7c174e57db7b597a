// Training whose bits do not depend on the number of ranks: 1, 2, 4, … ranks
// end with the same weights.
//
// The global batch is split into a fixed number of shards, and each shard has
// its own forward and backward passes. Gradients are added in one balanced tree
// over the shards, ((0+1)+(2+3))+…: each rank computes the branch over its own
// shards, and the group computes the top. A rank needs memory for a few sums
// besides its gradients, one per level of its branch.
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
// LogicalShards replaces DistributedDataParallel: do not wrap the module in
// one, unless with average_gradients = false and without broadcasts of buffers.
// Nothing is reduced during a backward pass; this, and small passes, are the
// price of equal bits.
//
// The caller keeps the following independent of the number of ranks: the
// samples of a shard; the compute threads of a rank (at::set_num_threads(1));
// random numbers; the processor, or the kind of GPU, and the libraries. On a
// GPU kernels must be deterministic, which not all of LibTorch's and cuDNN's
// are by default; tree_reduce() computes the sums over ranks. This class takes
// care of buffers, such as BatchNorm's: every shard starts from the same ones,
// and afterwards they are the average over the shards, or for integers the
// maximum.
//
// Threads: single-threaded. Every rank makes it and calls run() at the same
//          point of the program.
// Errors:  the constructor: InvalidArgument for numbers of shards and ranks
//          that make no tree, for a module without parameters to train and one
//          whose gradients are averaged already; Mismatch on every rank when
//          their modules or options differ. run(): InvalidArgument on every
//          rank for a sparse gradient on one; what a pass throws, after
//          aborting the group, so that no other rank waits for this one. Both:
//          those of ProcessGroup's operations.
// See docs/guides/reproducibility.md.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/comm/process_group.h"

namespace lockstep {

class GradientHooks;

struct LogicalShardsOptions {
  // The ranks that train together; default_group() when empty.
  std::shared_ptr<ProcessGroup> group{};
  // Shards of all ranks together: a power of two and a multiple of the number
  // of ranks, which is a power of two too.
  int count = 1;
  // Determines every LogicalShard::seed.
  std::uint64_t seed = 0;
};

struct LogicalShard {
  int index = 0;  // among all ranks' shards
  // For the random numbers of this pass: different for each shard and step.
  std::uint64_t seed = 0;
};

// Throws InvalidArgument unless `count` shards on `ranks` ranks make a balanced
// tree in which each rank has one branch.
void check_logical_shards(int count, int ranks);

class LogicalShards {
 public:
  // Copies rank 0's parameters and buffers to all ranks.
  LogicalShards(std::shared_ptr<const torch::nn::Module> module,
                const LogicalShardsOptions& options);
  ~LogicalShards();

  // Calls `pass` for each shard of this rank, in order; it runs forward and
  // backward passes, with a loss that is a mean over the shard. Then every
  // .grad is the average over all shards; a shard that did not use a parameter
  // counts as zero. A parameter that no shard used has no .grad. Earlier
  // contents of .grad are dropped.
  void run(const std::function<void(const LogicalShard&)>& pass);

  int count() const { return count_; }
  // This rank's are first(), first() + 1, … first() + own_count() - 1.
  int first() const { return group_->rank() * own_count(); }
  int own_count() const { return count_ / group_->size(); }

  // The number of calls of run(), on which seeds depend; a program that resumes
  // from a checkpoint sets it.
  std::int64_t step() const { return step_; }
  void set_step(std::int64_t step) { step_ = step; }

 private:
  struct Marks;

  void run_pass(const std::function<void(const LogicalShard&)>& pass,
                int index);
  // The summands of a shard: gradients, then buffers.
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
  // Claims the parameters, so that no other object reduces their gradients too.
  std::unique_ptr<GradientHooks> claim_;
};

}  // namespace lockstep
