#include "src/torch/gradient/seen_gradients.h"

#include <algorithm>

namespace lockstep {

void SeenGradients::see(std::span<const at::Tensor> parameters) {
  seen_.clear();
  for (const at::Tensor& parameter : parameters)
    seen_.emplace_back(parameter.grad());
}

bool SeenGradients::saw_none() const {
  return std::ranges::none_of(seen_, &SeenTensor::is_defined);
}

bool SeenGradients::is_same(std::size_t parameter,
                            const at::Tensor& tensor) const {
  return parameter < seen_.size() && seen_[parameter].is_same(tensor.grad());
}

bool SeenGradients::are_unchanged(
    std::span<const at::Tensor> parameters) const {
  if (seen_.empty() || seen_.size() > parameters.size()) return false;
  for (std::size_t i = 0; i < seen_.size(); ++i) {
    const at::Tensor& gradient = parameters[i].grad();
    if (!seen_[i].is_same(gradient) || !seen_[i].lies_at(gradient) ||
        version_of(gradient) != seen_[i].version())
      return false;
  }
  return true;
}

}  // namespace lockstep
