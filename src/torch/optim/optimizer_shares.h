// Inside of a ZeroRedundancyOptimizer: this rank's shard, how a step averages
// and updates it, and how ranks exchange their shares.
//
// Threads: single-threaded.
// Errors:  those of ZeroRedundancyOptimizer.
#pragma once

#include <torch/optim/optimizer.h>

#include <cstddef>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/torch/zero_redundancy_optimizer.h"
#include "src/torch/compare/replica_watch.h"
#include "src/torch/gradient/gradient_factor.h"
#include "src/torch/optim/fused_sharded_step.h"
#include "src/torch/optim/gradient_average.h"
#include "src/torch/optim/optimizer_shard.h"

namespace lockstep {

class ZeroRedundancyOptimizer::Shares {
 public:
  using Groups = std::vector<torch::optim::OptimizerParamGroup>;

  Shares(const Groups& groups, const ZeroRedundancyOptimizerOptions& options);

  ProcessGroup& group() const { return *group_; }
  OptimizerShard& shard() const { return *shard_; }
  GradientFactor& factor() { return factor_; }
  // The shard's parameters.
  const std::vector<at::Tensor>& tensors() const { return tensors_; }

  std::shared_ptr<CommHook> gradient_hook();
  void check_accepts_groups() const;
  // Adds to the shard those of `groups` that it does not have. When it throws,
  // nothing has changed. Call follow_parameters() after it.
  void add_parameters(const Groups& groups);
  void follow_parameters();

  // One step with the options of `groups`, and the exchange of the shares.
  void step(const Groups& groups);
  double clip_grad_norm(double max_norm, double norm_type);

  // This rank's state as bytes; and another rank's put into an optimizer that
  // is not sharded, with `groups`.
  std::vector<std::byte> pack() const;
  void unpack(std::span<const std::byte> packed, std::size_t rank,
              const Groups& groups, torch::optim::Optimizer& whole) const;

  // The state of all ranks, on the rank that gathered it; null otherwise.
  torch::optim::Optimizer* whole() const { return whole_.get(); }
  void set_whole(std::unique_ptr<torch::optim::Optimizer> whole) {
    whole_ = std::move(whole);
  }

 private:
  // By parameter: whether this step has finished with it.
  using Settled = std::vector<char>;

  void prepare_averages();
  void check_gradients() const;
  Settled begin_step(const Groups& groups);
  void agree_on_factor();
  Settled without_gradients() const;
  void begin_pieces(const Settled& settled);
  void update_own_pieces(const Settled& settled);
  void exchange_pieces(const Settled& settled);

  std::shared_ptr<ProcessGroup> group_;
  std::unique_ptr<OptimizerShard> shard_;
  // Set if step() averages gradients; one_pass_ if one pass can do it.
  std::unique_ptr<GradientAverage> average_;
  std::unique_ptr<FusedShardedStep> one_pass_;
  bool gave_hook_ = false;
  std::vector<at::Tensor> tensors_;
  GradientFactor factor_;  // of the next step
  ReplicaWatch watch_;
  std::unique_ptr<torch::optim::Optimizer> whole_;
};

}  // namespace lockstep
