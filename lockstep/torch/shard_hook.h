// Gradients that are averaged where they are used: each rank gets the average
// of what its shard of a sharded optimizer updates, and of nothing else.
//
//     lockstep::DistributedDataParallel model(net, {.group = group});
//     lockstep::ZeroRedundancyOptimizer optimizer(model.parameters(), rule,
//                                                 {.group = group});
//     model.register_comm_hook(optimizer.gradient_hook());
//
// A bucket is cut into the ranges that ranks own, and each is reduced to its
// owner while backward goes on: half of the bytes of an all-reduce. The other
// half is what the optimizer's step sends anyway, updated parameters (ZeRO,
// stage 2, but that every rank keeps room for all gradients).
//
// After backward() the elements of .grad that this rank does not own are of no
// use: as a rule they hold what it has computed itself. So
// - the optimizer's step(), its clip_grad_norm() and GradientScaler are right;
//   lockstep::clip_grad_norm(), a norm or a histogram of .grad are not;
// - gradients are to be dropped, by zero_grad(), before the first pass of a
//   step. Passes within no_sync() add up as ever, and the last one reduces.
//
// Gradients of parameters that the optimizer does not have are averaged whole,
// as without the hook. In wrappers such as CompressHook, which this can be the
// inner hook of, what travels is what they make of gradients.
//
// Threads: as CommHook.
// Errors:  from backward(): InvalidArgument when the module is of another group
//          than the optimizer. What ProcessGroup's operations throw.
// Source:  Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training
//          Trillion Parameter Models", SC 2020.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "lockstep/ddp/owner_ranges.h"
#include "lockstep/ddp/shard_plan.h"
#include "lockstep/torch/comm_hook.h"
#include "lockstep/torch/update_state.h"

namespace lockstep {

class ShardHook final : public CommHook {
 public:
  // `parameters` are what the plan's numbers mean, `group` the ranks whose
  // shards it has. Copies what it needs: it may outlive the optimizer.
  ShardHook(std::shared_ptr<ProcessGroup> group,
            std::span<const OptimizedParameter> parameters, ShardPlan plan);

  HookProgress start(const GradBucket& bucket) override;

 private:
  OwnerRanges ranges_of(const GradBucket& bucket) const;

  std::shared_ptr<ProcessGroup> group_;
  ShardPlan plan_;
  std::vector<at::Tensor> parameters_;  // keeps what the keys below point to
  std::unordered_map<const c10::TensorImpl*, std::size_t> numbers_;
};

}  // namespace lockstep
