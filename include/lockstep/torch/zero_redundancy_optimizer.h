// SGD, Adam or AdamW, sharded: each rank keeps 1/n of the state and makes 1/n
// of the step.
//
//     auto model = lockstep::DistributedDataParallel(Net());
//     lockstep::ZeroRedundancyOptimizer optimizer(
//         model.parameters(), torch::optim::AdamWOptions(1e-3));
//     …
//     loss.backward();     // averages gradients, as usual
//     optimizer.step();    // each rank updates its share, and all get it
//
// Works as torch.distributed.optim.ZeroRedundancyOptimizer (ZeRO, stage 1),
// except that parameters are split: every rank's share is equal even when one
// parameter is most of the model. After step() all ranks hold the same
// parameters, with the bits of FusedSGD, FusedAdam or FusedAdamW.
//
// It is a torch::optim::Optimizer, so learning-rate schedulers and zero_grad()
// work as usual; state(), in which LibTorch's optimizers keep theirs, stays
// empty. Every rank calls step(), clip_grad_norm() and consolidate_state_dict()
// at the same point of the program. Before step() gradients must be averaged
// over the ranks, unless the options say that step() averages them, and
// parameters must be equal, as DistributedDataParallel keeps them.
//
// step() and clip_grad_norm() read only this rank's share of the averages. So
// each rank needs only its share reduced, which saves traffic on GPUs and
// between hosts: see gradient_hook().
//
// To save: consolidate_state_dict() on every rank, then torch::save on the rank
// that got the state. The file is that of LibTorch's optimizer of the same
// kind. To load: torch::load of such a file on every rank, at any world size.
//
// Threads: single-threaded.
// Errors:  the constructor: Mismatch on every rank when their parameters
//          differ; InvalidArgument for an empty list, for different tensors in
//          the same memory, and for options and parameters that FusedSGD and
//          its kind refuse. step(): InvalidArgument on every rank for a sparse
//          gradient. Those of ProcessGroup's operations.
// Source:  Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training
//          Trillion Parameter Models", SC 2020.
#pragma once

#include <torch/optim/optimizer.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/torch/comm_hooks.h"
#include "lockstep/torch/gradient_scaler.h"

namespace lockstep {

class OptimizerShard;
struct UpdateState;

struct ZeroRedundancyOptimizerOptions {
  // The ranks that train together; default_group() when empty.
  std::shared_ptr<ProcessGroup> group{};
  // Whether step() averages the gradients itself; the model then must not:
  //
  //     DistributedDataParallel model(Net(), {.average_gradients = false});
  //     ZeroRedundancyOptimizer optimizer(model.parameters(), rule,
  //                                       {.averages_gradients = true});
  //
  // On shared memory, average and update are one pass over memory: .grad stays
  // the rank's own gradient, and parameters move to memory that all ranks map,
  // so that earlier views of them no longer share their memory.
  // clip_grad_norm() costs one more pass, after which .grad is the average.
  bool averages_gradients = false;
  // Every so many steps the ranks compare hashes of the parameters, and step()
  // throws Mismatch on every rank if they differ: see
  // DistributedDataParallelOptions.
  std::int64_t compare_replicas_every = 1000;
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
  ~ZeroRedundancyOptimizer() override;
  ZeroRedundancyOptimizer(ZeroRedundancyOptimizer&&) noexcept;

  // A hook for DistributedDataParallel, which gives each rank only the averages
  // of its share. Every rank registers it before the first backward pass. The
  // model and the optimizer have the same group. InvalidArgument where step()
  // averages gradients.
  std::shared_ptr<CommHook> gradient_hook() const;

  // Updates this rank's share of every parameter that has a gradient, and
  // exchanges the shares with all ranks.
  at::Tensor step(LossClosure closure = nullptr) override;

  // As LibTorch's. Forgets factors of scale_gradients() and clip_grad_norm()
  // that no step has used.
  void zero_grad(bool set_to_none = true);

  // The next step() multiplies every gradient by `factor`, the same on every
  // rank; factors of several calls multiply. Call it after backward(): a
  // gradient that changes before the step loses the factor.
  void scale_gradients(double factor) override;

  double take_scaling() override;
  void forget_scaling() override;

  // Scales so that the norm of all gradients together is at most `max_norm`.
  // Returns the norm before, scale_gradients() included, the same on every
  // rank. Of several calls the last counts. Each rank reads its share of the
  // gradients; .grad stays as it is.
  double clip_grad_norm(double max_norm, double norm_type = 2);

  // As LibTorch's, for parameters that join the training later; every rank
  // calls it at the same point of the program. Each rank gets 1/n of them in
  // addition. InvalidArgument after gradient_hook(), since the hook would not
  // know them. A call through torch::optim::Optimizer& reaches LibTorch's own
  // function, and step() throws then. With averages_gradients all parameters
  // move to other memory again.
  void add_param_group(const torch::optim::OptimizerParamGroup& group);

  // Gathers the state of all ranks on rank `to`. The next step() drops it.
  void consolidate_state_dict(int to = 0);

  // The result of consolidate_state_dict(): an optimizer of the same kind and
  // parameters that is not sharded. InvalidArgument on a rank without it.
  const torch::optim::Optimizer& state_dict() const;

  // Takes this rank's share of the state of `whole`, and its options. `whole`
  // is LibTorch's or a fused optimizer, with the same number of parameters of
  // the same shapes in the same groups.
  void load_state_dict(const torch::optim::Optimizer& whole);

  // Writes state_dict(), and reads such a file or one of LibTorch's optimizer.
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

  // Bytes of this rank's share of the state.
  std::size_t state_bytes() const;

  // This rank's pieces and their state, for checkpoints and tests.
  const OptimizerShard& shard() const;

 private:
  // For checkpoints.
  friend void load_shard(ZeroRedundancyOptimizer& optimizer,
                         std::vector<UpdateState> states);

  std::unique_ptr<torch::optim::Optimizer> make_whole() const;

  class Shares;
  std::unique_ptr<Shares> shares_;
};

}  // namespace lockstep
