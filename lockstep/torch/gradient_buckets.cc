#include "lockstep/torch/gradient_buckets.h"

#include <ATen/core/Formatting.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/DefaultDtype.h>
#include <c10/util/StringUtil.h>
#include <torch/csrc/autograd/utils/grad_layout_contract.h>

#include <cstring>

#include "lockstep/base/error.h"
#include "lockstep/torch/tensor_buffer.h"

namespace lockstep {
namespace {

// Below this size LibTorch's copy costs more in dispatch than in copying.
constexpr std::size_t kSmallBytes = 32 * 1024;

std::vector<std::int64_t> row_major_strides(at::IntArrayRef sizes) {
  std::vector<std::int64_t> strides(sizes.size());
  std::int64_t stride = 1;
  for (std::size_t i = sizes.size(); i-- > 0;) {
    strides[i] = stride;
    stride *= std::max<std::int64_t>(sizes[i], 1);
  }
  return strides;
}

// A tensor of this shape on `data`, which keeps `memory` alive.
at::Tensor tensor_on(std::byte* data, const std::shared_ptr<std::byte>& memory,
                     const at::Tensor& like) {
  const auto strides = like.is_non_overlapping_and_dense()
                           ? like.strides().vec()
                           : row_major_strides(like.sizes());
  return at::from_blob(
      data, like.sizes(), strides, [memory](void*) {},
      at::TensorOptions().dtype(like.scalar_type()));
}

void check_gradient(const at::Tensor& gradient, const at::Tensor& slot,
                    const std::string& name) {
  const auto refuse = [&](const std::string& why, const char* next) {
    throw InvalidArgument("the gradient of parameter " + name +
                          " cannot be reduced: " + why +
                          "\n  next:    " + next);
  };
  if (!gradient.defined())
    refuse("its .grad was reset while backward ran",
           "do that after backward() has returned");
  if (gradient.layout() != at::kStrided)
    refuse("it is sparse",
           "use dense gradients: EmbeddingOptions::sparse(false)");
  if (gradient.sizes() != slot.sizes())
    refuse(c10::str("its shape is ", gradient.sizes(), ", the parameter's was ",
                    slot.sizes()),
           "wrap the module anew after changing a parameter's shape");
}

void fill_slot(const at::Tensor& slot, const at::Tensor& gradient) {
  const bool same_layout =
      gradient.scalar_type() == slot.scalar_type() &&
      gradient.device().is_cpu() &&
      torch::autograd::utils::obeys_layout_contract(gradient, slot);
  if (same_layout && slot.nbytes() <= kSmallBytes)
    std::memcpy(slot.data_ptr(), gradient.const_data_ptr(), slot.nbytes());
  else
    slot.copy_(gradient);
}

}  // namespace

GradientBuckets::GradientBuckets(std::span<const at::Tensor> parameters,
                                 const BucketPlan& plan, ProcessGroup& group)
    : slots_(parameters.size()) {
  LOCKSTEP_CHECK(!plan.buckets.empty(), "there is nothing to reduce");
  for (const BucketPlan::Bucket& bucket : plan.buckets) {
    const bool last = &bucket == &plan.buckets.back();
    const std::size_t element_bytes = size_of(bucket.type);
    const std::size_t elements = bucket.elements + (last ? 1 : 0);
    const auto memory = group.allocate(elements * element_bytes);
    for (const BucketPlan::Slot& slot : bucket.slots)
      slots_[slot.parameter] =
          tensor_on(memory.get() + slot.offset * element_bytes, memory,
                    parameters[slot.parameter]);
    if (last)
      incomplete_ = at::from_blob(
          memory.get() + bucket.elements * element_bytes, {1},
          [memory](void*) {},
          at::TensorOptions().dtype(scalar_type_of(bucket.type)));
    buffers_.push_back({memory.get(), static_cast<std::int64_t>(elements),
                        bucket.type, bucket.device});
  }
}

void GradientBuckets::take(std::size_t parameter, const at::Tensor& tensor,
                           const std::string& name) {
  const at::Tensor& slot = slots_[parameter];
  at::Tensor& gradient = tensor.mutable_grad();
  if (gradient.is_same(slot)) return;
  check_gradient(gradient, slot, name);
  if (gradient.const_data_ptr() != slot.const_data_ptr())
    fill_slot(slot, gradient);
  gradient = slot;
}

void GradientBuckets::clear(std::size_t parameter) {
  slots_[parameter].zero_();
}

void GradientBuckets::declare_complete() { incomplete_.zero_(); }

void GradientBuckets::declare_incomplete() { incomplete_.fill_(1); }

bool GradientBuckets::some_rank_is_incomplete() const {
  return incomplete_.item<double>() != 0;
}

}  // namespace lockstep
