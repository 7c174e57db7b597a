#include "src/torch/optim/shard_hook.h"

#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/torch/tensor_collectives.h"
#include "src/comm/group/group_core.h"

namespace lockstep {
namespace {

Buffer part_of(const at::Tensor& block, const OwnerRanges::Range& range) {
  return view(block.narrow(0, static_cast<std::int64_t>(range.begin),
                           static_cast<std::int64_t>(range.elements)));
}

// One round: reduces each rank's range to the average, in place in that rank's
// block.
Work reduce_to_owners(const GradBucket& bucket,
                      const std::vector<OwnerRanges::Range>& round) {
  std::vector<Buffer> by_rank;
  for (const auto& range : round)
    by_rank.push_back(part_of(bucket.buffer, range));
  const auto own = static_cast<std::size_t>(bucket.group->rank());
  return bucket.group->reduce_scatter_v(
      by_rank, by_rank[own], ReduceOp::kAverage,
      {.label = "gradients, to their owners"});
}

Work average_whole(const GradBucket& bucket,
                   const std::vector<OwnerRanges::Range>& ranges) {
  std::vector<Buffer> list;
  for (const auto& range : ranges)
    list.push_back(part_of(bucket.buffer, range));
  return bucket.group->all_reduce(list, ReduceOp::kAverage,
                                  {.label = "gradients that no shard has"});
}

// Whether rank r of one group is rank r of the other, for all r: a module's
// gradients are reduced in a duplicate of its group.
bool has_ranks_of(const ProcessGroup& one, const ProcessGroup& other) {
  if (one.rank() != other.rank() || one.size() != other.size()) return false;
  for (int r = 0; r < one.size(); ++r)
    if (one.core().identity().rank_in_job(r) !=
        other.core().identity().rank_in_job(r))
      return false;
  return true;
}

// All operations have started; the last is waited for first, since a wait in
// between would delay the device between two consecutive operations.
HookProgress progress_of(std::vector<Work> works) {
  if (works.empty()) return {};
  Work last = std::move(works.back());
  works.pop_back();
  if (works.empty()) return {std::move(last)};
  return followed_by({std::move(last)},
                     [earlier = std::move(works)] { wait_for_all(earlier); });
}

}  // namespace

ShardHook::ShardHook(std::shared_ptr<ProcessGroup> group,
                     std::span<const OptimizedParameter> parameters,
                     ShardPlan plan)
    : group_(std::move(group)), plan_(std::move(plan)) {
  for (const OptimizedParameter& parameter : parameters) {
    numbers_.emplace(parameter.tensor.unsafeGetTensorImpl(),
                     parameters_.size());
    parameters_.push_back(parameter.tensor);
  }
}

HookProgress ShardHook::start(const GradBucket& bucket) {
  if (!has_ranks_of(*bucket.group, *group_))
    throw InvalidArgument(
        "the gradients of a module of group \"" + bucket.group->name() +
        "\" cannot be reduced to the shards of an optimizer of group \"" +
        group_->name() +
        "\"\n  next:    give DistributedDataParallel and "
        "ZeroRedundancyOptimizer the same group");
  const OwnerRanges ranges = ranges_of(bucket);
  std::vector<Work> works;
  for (const auto& round : ranges.rounds)
    works.push_back(reduce_to_owners(bucket, round));
  if (!ranges.of_nobody.empty())
    works.push_back(average_whole(bucket, ranges.of_nobody));
  return progress_of(std::move(works));
}

// Computed per bucket: the contents of buckets change with their plan.
OwnerRanges ShardHook::ranges_of(const GradBucket& bucket) const {
  std::vector<GradientPlace> places;
  for (std::size_t i = 0; i < bucket.parameters.size(); ++i) {
    const at::Tensor& gradient = bucket.gradients[i];
    const auto found =
        numbers_.find(bucket.parameters[i].unsafeGetTensorImpl());
    places.push_back(
        {.begin = static_cast<std::size_t>(gradient.storage_offset() -
                                           bucket.buffer.storage_offset()),
         .elements = static_cast<std::size_t>(gradient.numel())});
    if (found != numbers_.end()) places.back().parameter = found->second;
  }
  return owner_ranges(plan_, places);
}

}  // namespace lockstep
