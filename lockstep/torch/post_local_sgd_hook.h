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
// differ. Not to be used within join(), which knows nothing of averages of
// models. Each pass still tells all ranks whether gradients are missing: a
// number, for which they wait.
//
// Threads: as CommHook.
// Errors:  InvalidArgument without a sub-group of which this rank is a member;
//          what its duplicate() throws.
// Source:  Lin, Stich, Patel, Jaggi: "Don't Use Large Mini-Batches, Use Local
//          SGD", ICLR 2020; options as in PyTorch's PostLocalSGDState.
#pragma once

#include <cstdint>
#include <memory>

#include "lockstep/torch/comm_hook.h"

namespace lockstep {

struct PostLocalSgdOptions {
  // Over which gradients are averaged later: in most cases the ranks of a host.
  std::shared_ptr<ProcessGroup> subgroup{};
  // Passes that are averaged over all ranks before.
  std::int64_t start_iteration = 0;
  // Without it gradients are not averaged at all later, and `subgroup` is not
  // used.
  bool post_local_gradient_allreduce = true;
};

class PostLocalSgdHook final : public CommHook {
 public:
  // Every rank of the sub-group makes it at the same point: gradients are
  // reduced in a duplicate, in an order of their own. Of GPUs', and where the
  // backend has no duplicates, in the sub-group itself.
  explicit PostLocalSgdHook(PostLocalSgdOptions options);

  HookProgress start(const GradBucket& bucket) override;
  void abort(std::string_view reason) noexcept override;

  // Passes so far: what a run that goes on after a stop gives back.
  std::int64_t iteration() const { return iteration_; }
  void set_iteration(std::int64_t iteration) { iteration_ = iteration; }

 private:
  PostLocalSgdOptions options_;
  std::shared_ptr<ProcessGroup> order_;  // of the sub-group
  std::int64_t iteration_ = 0;
};

}  // namespace lockstep
