#include <utility>

#include "lockstep/torch/comm_hooks.h"
#include "lockstep/torch/tensor_collectives.h"

namespace lockstep {

Work all_reduce_average(const GradBucket& bucket) {
  return bucket.group->all_reduce(view(bucket.buffer), ReduceOp::kAverage,
                                  {.label = "gradients, by a hook"});
}

GradBucket with_buffer(const GradBucket& bucket, const at::Tensor& buffer) {
  GradBucket other = bucket;
  other.buffer = buffer;
  const std::int64_t moved =
      buffer.storage_offset() - bucket.buffer.storage_offset();
  for (at::Tensor& gradient : other.gradients)
    gradient = buffer.as_strided(gradient.sizes(), gradient.strides(),
                                 gradient.storage_offset() + moved);
  return other;
}

HookProgress followed_by(HookProgress progress, std::function<void()> last) {
  return {std::move(progress.work),
          [then = std::move(progress.then),
           last = std::move(last)]() -> HookProgress {
            if (then) return followed_by(then(), last);
            last();
            return {};
          }};
}

}  // namespace lockstep
