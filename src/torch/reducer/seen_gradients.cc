#include "src/torch/reducer/seen_gradients.h"

#include <algorithm>

namespace lockstep {
namespace {

// Autograd's count of writes to it.
std::uint32_t version_of(const at::Tensor& tensor) {
  return tensor.is_inference() ? 0
                               : tensor.unsafeGetTensorImpl()
                                     ->version_counter()
                                     .current_version();
}

}  // namespace

void SeenGradients::see(std::span<const at::Tensor> parameters) {
  seen_.clear();
  for (const at::Tensor& parameter : parameters) {
    const at::Tensor& gradient = parameter.grad();
    seen_.push_back({.gradient = Weak(gradient.getIntrusivePtr()),
                     .defined = gradient.defined(),
                     .version = gradient.defined() ? version_of(gradient) : 0});
  }
}

bool SeenGradients::saw_none() const {
  return std::ranges::none_of(seen_, &Seen::defined);
}

bool SeenGradients::is_same(std::size_t parameter,
                            const at::Tensor& tensor) const {
  if (parameter >= seen_.size()) return false;
  const at::Tensor& gradient = tensor.grad();
  const Seen& seen = seen_[parameter];
  if (!gradient.defined() || !seen.defined)
    return gradient.defined() == seen.defined;
  return seen.gradient.lock().get() == gradient.unsafeGetTensorImpl();
}

bool SeenGradients::are_unchanged(
    std::span<const at::Tensor> parameters) const {
  if (seen_.empty() || seen_.size() > parameters.size()) return false;
  for (std::size_t i = 0; i < seen_.size(); ++i) {
    if (!is_same(i, parameters[i])) return false;
    const at::Tensor& gradient = parameters[i].grad();
    if (gradient.defined() && version_of(gradient) != seen_[i].version)
      return false;
  }
  return true;
}

}  // namespace lockstep
