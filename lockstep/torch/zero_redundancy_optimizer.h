// SGD, Adam or AdamW of which each rank keeps 1/n of the state and makes 1/n of
// the step.
//
//     auto model = lockstep::DistributedDataParallel(Net());
//     lockstep::ZeroRedundancyOptimizer optimizer(
//         model.parameters(), torch::optim::AdamWOptions(1e-3));
//     …
//     loss.backward();     // averages gradients, as ever
//     optimizer.step();    // each rank updates its share, and all get it
//
// As torch.distributed.optim.ZeroRedundancyOptimizer (ZeRO, stage 1), but that
// parameters are cut: every rank's share is equal even when one parameter is
// most of the model. After step() all ranks hold the same parameters, with the
// bits that FusedSGD and its kind would have given them.
//
// It is a torch::optim::Optimizer, so learning-rate schedulers and zero_grad()
// work as usual; state(), in which LibTorch's optimizers keep theirs, stays
// empty. Every rank calls step(), clip_grad_norm() and consolidate_state_dict()
// at the same point of the program. Gradients must be averaged over the ranks
// before step(), unless the options say that it does that itself, and
// parameters be equal, as DistributedDataParallel makes them.
//
// Of the averages step() and clip_grad_norm() read this rank's share only. So
// no more than that need be reduced on each rank, on GPUs and between hosts,
// where sending is what costs: see gradient_hook().
//
// To save: consolidate_state_dict() on every rank, then torch::save on the one
// that got the state. The file is one of LibTorch's optimizer of the same kind.
// To load: torch::load of such a file on every rank, at whatever world size.
//
// Threads: single-threaded.
// Errors:  when made: Mismatch on every rank when their parameters differ;
//          InvalidArgument for no parameters, for different tensors in the
//          same memory, and for what update_state.h refuses. From step():
//          InvalidArgument on every rank alike for a sparse gradient. What
//          ProcessGroup's operations throw.
// Source:  Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training
//          Trillion Parameter Models", SC 2020.
#pragma once

#include <torch/optim/optimizer.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/torch/comm_hook.h"
#include "lockstep/torch/gradient_factor.h"
#include "lockstep/torch/local_gradients.h"
#include "lockstep/torch/one_pass_step.h"
#include "lockstep/torch/optimizer_shard.h"
#include "lockstep/torch/scales_gradients.h"

namespace lockstep {

struct ZeroRedundancyOptimizerOptions {
  // The ranks that train together; default_group() when empty.
  std::shared_ptr<ProcessGroup> group{};
  // Whether step() averages the gradients itself, which nobody else does then:
  //
  //     DistributedDataParallel model(Net(), {.average_gradients = false});
  //     ZeroRedundancyOptimizer optimizer(model.parameters(), rule,
  //                                       {.averages_gradients = true});
  //
  // On shared memory that and the update are one pass over memory: .grad stays
  // what this rank alone has computed, and parameters move to memory that all
  // ranks reach, so that tensors made from them before are no views of them any
  // more. clip_grad_norm() costs a pass more, after which .grad is the average.
  bool averages_gradients = false;
};

class ZeroRedundancyOptimizer final : public torch::optim::Optimizer,
                                      public ScalesGradients {
 public:
  // `rule` is torch::optim::SGDOptions, AdamOptions or AdamWOptions. A
  // parameter that is given twice, as tied weights are, counts once.
  ZeroRedundancyOptimizer(std::vector<at::Tensor> parameters,
                          const torch::optim::OptimizerOptions& rule,
                          const ZeroRedundancyOptimizerOptions& options = {});
  ZeroRedundancyOptimizer(
      const std::vector<torch::optim::OptimizerParamGroup>& groups,
      const torch::optim::OptimizerOptions& defaults,
      const ZeroRedundancyOptimizerOptions& options = {});

  // What DistributedDataParallel is to reduce this optimizer's gradients by, so
  // that each rank gets the averages of its share alone: a ShardHook, to be
  // registered on every rank before the first backward pass. The model and the
  // optimizer are of the same group. InvalidArgument where step() averages
  // gradients.
  std::shared_ptr<CommHook> gradient_hook() const;

  // Updates this rank's share of every parameter that has a gradient, and gives
  // and gets the shares of all.
  at::Tensor step(LossClosure closure = nullptr) override;

  // As LibTorch's. Forgets what scale_gradients() and clip_grad_norm() have
  // said of a step that was not made.
  void zero_grad(bool set_to_none = true);

  // Lets the next step() take every gradient times `factor`, the same on every
  // rank; factors of several calls multiply. To be called after backward(): a
  // gradient that changes before the step is another one, and takes the factor
  // with it.
  void scale_gradients(double factor) override {
    factor_.scale(factor, tensors_);
  }

  double take_scaling() override { return factor_.take(tensors_); }
  void forget_scaling() override { factor_.forget(); }

  // Scales so that the norm of all gradients together is at most `max_norm`.
  // Returns what it was, scale_gradients() included, the same on every rank. Of
  // several calls the last counts.
  // Each rank reads its share of the gradients; .grad stays as it is.
  double clip_grad_norm(double max_norm, double norm_type = 2);

  // As LibTorch's, for parameters that training begins with later: on every
  // rank at the same point of the program. Each rank gets 1/n of them besides
  // what it has. Not of an optimizer that has given out a gradient_hook(),
  // which would not know them: InvalidArgument. Through
  // torch::optim::Optimizer& it is LibTorch's own, and step() throws then. With
  // averages_gradients all parameters move to other memory once more.
  void add_param_group(const torch::optim::OptimizerParamGroup& group);

  // Gathers the state of all ranks on rank `to`. The next step() drops it.
  void consolidate_state_dict(int to = 0);

  // What consolidate_state_dict() gathered: an optimizer of the same kind and
  // parameters that is not sharded. InvalidArgument where nothing was gathered.
  const torch::optim::Optimizer& state_dict() const;

  // Takes this rank's share of another optimizer's state, and its options. It
  // is one of LibTorch's or a fused one, of as many parameters of the same
  // shapes in the same groups.
  void load_state_dict(const torch::optim::Optimizer& whole);

  // Writes state_dict(), and reads such a file or one of LibTorch's optimizer.
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

  // This rank's pieces and their state.
  const OptimizerShard& shard() const { return shard_; }

 private:
  // By parameter: whether nothing is left to be done for it in this step.
  using Settled = std::vector<char>;

  void prepare_averages();
  void check_gradients() const;
  Settled begin_step();
  void agree_on_factor();
  Settled without_gradients() const;
  void begin_pieces(const Settled& settled);
  void update_own_pieces(const Settled& settled);
  void exchange_pieces(const Settled& settled);
  // What consolidate_state_dict() moves: this rank's state as bytes, and
  // another's into an optimizer that is not sharded.
  std::vector<std::byte> pack() const;
  void unpack(std::span<const std::byte> packed, std::size_t rank,
              torch::optim::Optimizer& whole) const;
  std::unique_ptr<torch::optim::Optimizer> make_whole() const;

  std::shared_ptr<ProcessGroup> group_;
  OptimizerShard shard_;
  // Where step() averages gradients; and where that can be one pass.
  std::optional<LocalGradients> local_gradients_;
  std::unique_ptr<OnePassStep> one_pass_;
  mutable bool gave_hook_ = false;
  std::vector<at::Tensor> tensors_;                 // the shard's parameters
  GradientFactor factor_;                           // of the next step
  std::unique_ptr<torch::optim::Optimizer> whole_;  // where it was gathered
};

}  // namespace lockstep
