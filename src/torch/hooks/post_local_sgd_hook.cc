#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/torch/comm_hooks.h"
#include "src/comm/group/group_core.h"

namespace lockstep {

PostLocalSgdHook::PostLocalSgdHook(PostLocalSgdOptions options)
    : options_(std::move(options)) {
  if (options_.start_iteration < 0)
    throw InvalidArgument("PostLocalSgdHook: start_iteration is negative");
  if (!options_.post_local_gradient_allreduce) return;
  if (!options_.subgroup || !options_.subgroup->is_member())
    throw InvalidArgument(
        "PostLocalSgdHook: this rank has no sub-group in which to average "
        "gradients\n"
        "  next:    make one on every rank with split(), or set "
        "post_local_gradient_allreduce to false");
  order_ = options_.subgroup->core().duplicate();
  if (!order_) order_ = options_.subgroup;
}

HookProgress PostLocalSgdHook::start(const GradBucket& bucket) {
  const bool is_local = iteration_ >= options_.start_iteration;
  if (bucket.is_last) ++iteration_;
  if (!is_local) return {all_reduce_average(bucket)};
  if (!options_.post_local_gradient_allreduce) return {};
  GradBucket of_subgroup = bucket;
  const bool on_cpu = bucket.buffer.is_cpu();
  of_subgroup.group = on_cpu ? order_ : options_.subgroup;
  return {all_reduce_average(of_subgroup)};
}

void PostLocalSgdHook::abort(std::string_view reason) noexcept {
  if (!options_.post_local_gradient_allreduce) return;
  order_->abort(reason);
  options_.subgroup->abort(reason);
}

}  // namespace lockstep
