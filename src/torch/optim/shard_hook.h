// Averages gradients only where they are used: each rank gets the averages of
// the parameters that its shard of a sharded optimizer updates.
//
//     lockstep::DistributedDataParallel model(net, {.group = group});
//     lockstep::ZeroRedundancyOptimizer optimizer(model.parameters(), rule,
//                                                 {.group = group});
//     model.register_comm_hook(optimizer.gradient_hook());
//
// The hook splits a bucket into the ranges that ranks own, and reduces each to
// its owner while backward runs: half of the bytes of an all-reduce. The other
// half is the updated parameters, which the optimizer's step sends anyway
// (ZeRO, stage 2, except that every rank keeps room for all gradients).
//
// After backward() the elements of .grad that this rank does not own are
// meaningless: usually they hold the rank's own gradients. So
// - the optimizer's step(), its clip_grad_norm() and GradientScaler give right
//   results; lockstep::clip_grad_norm(), a norm or a histogram of .grad do not;
// - the program drops gradients, by zero_grad(), before a step's first pass,
//   and a step has one reduced pass, its last; passes within no_sync()
//   accumulate as usual. A pass that would add to a reduced gradient throws,
//   unless the program has changed that gradient meanwhile.
//
// Gradients of parameters that the optimizer does not have are averaged whole,
// as without the hook. As the inner hook of a wrapper such as CompressHook it
// reduces what the wrapper makes of the gradients.
//
// Threads: like CommHook.
// Errors:  from backward(): InvalidArgument when module and optimizer have
//          different groups. Those of ProcessGroup's operations.
// Source:  Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training
//          Trillion Parameter Models", SC 2020.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "lockstep/torch/comm_hooks.h"
#include "src/planning/owner_ranges.h"
#include "src/planning/shard_plan.h"
#include "src/torch/optim/update_state.h"

namespace lockstep {

class ShardHook final : public CommHook {
 public:
  // The plan's indices refer to `parameters`, its shards to the ranks of
  // `group`. The hook copies what it needs: it may outlive the optimizer.
  ShardHook(std::shared_ptr<ProcessGroup> group,
            std::span<const OptimizedParameter> parameters, ShardPlan plan);

  HookProgress start(const GradBucket& bucket) override;
  bool reduces_in_part(const at::Tensor& parameter) const override {
    return numbers_.contains(parameter.unsafeGetTensorImpl());
  }

 private:
  OwnerRanges ranges_of(const GradBucket& bucket) const;

  std::shared_ptr<ProcessGroup> group_;
  ShardPlan plan_;
  std::vector<at::Tensor> parameters_;  // keeps the keys below valid
  std::unordered_map<const c10::TensorImpl*, std::size_t> numbers_;
};

}  // namespace lockstep
