// Post-local SGD: after some passes gradients are no longer averaged over all
// ranks, but over a sub-group or not at all; a ModelAverager averages the
// parameters now and then instead.
//
//     const auto host = lockstep::split(*world, {.color = …});
//     model.register_comm_hook(std::make_shared<lockstep::PostLocalSgdHook>(
//         lockstep::PostLocalSgdOptions{.subgroup = host,
//                                       .start_iteration = 100}));
//     lockstep::PeriodicModelAverager averager({.period = 4,
//                                               .warmup_steps = 100});
//     …
//     optimizer.step();
//     averager.average_parameters(model.parameters());
//
// Between two averages the models of ranks that are not in one sub-group
// differ. Do not use it within join(), which does not support averaged models.
// In each pass all ranks still exchange whether gradients are missing: one
// number, for which they wait.
//
// Threads: like CommHook.
// Errors:  InvalidArgument without a sub-group of which this rank is a member;
//          those of its duplicate().
// Source:  Lin, Stich, Patel, Jaggi: "Don't Use Large Mini-Batches, Use Local
//          SGD", ICLR 2020; options as in PyTorch's PostLocalSGDState.
#pragma once

#include <cstdint>
#include <memory>

#include "lockstep/torch/comm_hook.h"

namespace lockstep {

struct PostLocalSgdOptions {
  // The ranks that average gradients later: in most cases those of a host.
  std::shared_ptr<ProcessGroup> subgroup{};
  // The first passes, which average over all ranks.
  std::int64_t start_iteration = 0;
  // When false, later passes do not average gradients at all, and `subgroup` is
  // not used.
  bool post_local_gradient_allreduce = true;
};

class PostLocalSgdHook final : public CommHook {
 public:
  // Every rank of the sub-group makes it at the same point: it reduces
  // gradients in a duplicate of the sub-group, in an order of their own. On
  // GPUs, and where the backend has no duplicates, it uses the sub-group
  // itself.
  explicit PostLocalSgdHook(PostLocalSgdOptions options);

  HookProgress start(const GradBucket& bucket) override;
  void abort(std::string_view reason) noexcept override;
  bool replicas_may_differ() const override {
    return iteration_ >= options_.start_iteration;
  }

  // Passes so far; a resumed run restores them.
  std::int64_t iteration() const { return iteration_; }
  void set_iteration(std::int64_t iteration) { iteration_ = iteration; }

 private:
  PostLocalSgdOptions options_;
  std::shared_ptr<ProcessGroup> order_;  // of the sub-group
  std::int64_t iteration_ = 0;
};

}  // namespace lockstep
