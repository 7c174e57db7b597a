#include "src/torch/tensor/tensor_memory.h"

#include <ATen/ops/clone.h>
#include <c10/core/GradMode.h>

#include <cstdint>

namespace lockstep {
// Some derivatives return zeros without memory.
bool holds_its_elements(const at::Tensor& tensor) {
  return tensor.layout() == at::kStrided && !tensor.is_neg() &&
         !tensor.is_conj() && !tensor._is_zerotensor();
}

at::Tensor resolved(const at::Tensor& tensor) {
  if (tensor.layout() != at::kStrided || holds_its_elements(tensor))
    return tensor;
  return tensor.clone();
}

void resolve_gradient(const at::Tensor& parameter) {
  at::Tensor& gradient = parameter.mutable_grad();
  if (!gradient.defined() || gradient.layout() != at::kStrided ||
      holds_its_elements(gradient))
    return;
  const c10::AutoGradMode no_grad(false);
  gradient = gradient.clone();
}

at::Tensor without_repeats(at::Tensor tensor, const at::Tensor& like) {
  for (std::int64_t i = 0; i < like.dim(); ++i)
    if (like.stride(i) == 0 && like.size(i) > 1)
      tensor = tensor.narrow(i, 0, 1);
  return tensor;
}

at::Tensor without_repeats(const at::Tensor& tensor) {
  return without_repeats(tensor, tensor);
}

void copy_elements(const at::Tensor& from, const at::Tensor& to) {
  without_repeats(to).copy_(without_repeats(from, to));
}

bool is_exclusive(const at::Tensor& tensor) {
  return tensor.has_storage() && tensor.storage().use_count() == 1;
}

bool is_alias_of(const at::Tensor& alias, const at::Tensor& tensor) {
  return alias.const_data_ptr() == tensor.const_data_ptr() &&
         alias.sizes() == tensor.sizes() &&
         alias.strides() == tensor.strides() &&
         alias.scalar_type() == tensor.scalar_type() &&
         alias.is_neg() == tensor.is_neg() &&
         alias.is_conj() == tensor.is_conj();
}

void make_alias(const at::Tensor& alias, const at::Tensor& tensor) {
  if (!is_alias_of(alias, tensor)) alias.set_data(tensor);
  if (!alias.is_inference() && !tensor.is_inference())
    alias.unsafeGetTensorImpl()->set_version_counter(
        tensor.unsafeGetTensorImpl()->version_counter());
}

std::pair<const std::byte*, const std::byte*> extent_of(
    const at::Tensor& tensor) {
  const auto* const begin =
      static_cast<const std::byte*>(tensor.const_data_ptr());
  if (tensor.numel() == 0) return {begin, begin};
  std::int64_t last = 0;
  for (std::int64_t i = 0; i < tensor.dim(); ++i)
    last += (tensor.size(i) - 1) * tensor.stride(i);
  return {begin,
          begin + static_cast<std::size_t>(last + 1) * tensor.itemsize()};
}

std::uint32_t version_of(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.is_inference()) return 0;
  return tensor.unsafeGetTensorImpl()->version_counter().current_version();
}

SeenTensor::SeenTensor(const at::Tensor& tensor)
    : defined_(tensor.defined()), version_(version_of(tensor)) {
  if (!defined_) return;
  tensor_ = Tensor(tensor.getIntrusivePtr());
  if (!tensor.has_storage()) return;
  storage_ = Storage(tensor.storage().getWeakStorageImpl());
  offset_ = tensor.storage_offset();
}

bool SeenTensor::is_same(const at::Tensor& tensor) const {
  if (!defined_ || !tensor.defined()) return defined_ == tensor.defined();
  return tensor_._unsafe_get_target() == tensor.unsafeGetTensorImpl();
}

bool SeenTensor::lies_at(const at::Tensor& tensor) const {
  if (!defined_ || !tensor.defined()) return defined_ == tensor.defined();
  const auto* const storage =
      tensor.has_storage() ? tensor.storage().unsafeGetStorageImpl() : nullptr;
  return storage_._unsafe_get_target() == storage &&
         (storage == nullptr || tensor.storage_offset() == offset_);
}

bool AnchoredTensor::is_home(const at::Tensor& tensor) const {
  return tensor.is_same(given_) && is_alias_of(tensor, place_);
}

const at::Tensor& AnchoredTensor::get() {
  if (!is_home(given_)) given_ = place_.variable_data();
  return given_;
}

at::ScalarType gradient_type(const at::Tensor& parameter) {
  return parameter.grad_dtype().value_or(parameter.scalar_type());
}

}  // namespace lockstep
