#include "lockstep/torch/clip_gradients.h"

#include <c10/core/GradMode.h>
#include <c10/util/StringUtil.h>

#include <cmath>
#include <unordered_set>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/ddp/update_kernels.h"
#include "lockstep/torch/tensor_buffer.h"

namespace lockstep {
namespace {

std::vector<at::Tensor> gradients_of(at::TensorList parameters) {
  std::vector<at::Tensor> gradients;
  std::unordered_set<const c10::TensorImpl*> seen;
  for (const at::Tensor& parameter : parameters)
    if (parameter.grad().defined() &&
        seen.insert(parameter.unsafeGetTensorImpl()).second)
      gradients.push_back(parameter.grad());
  return gradients;
}

double squares_of(const at::Tensor& gradient) {
  if (gradient.layout() != at::kStrided || !gradient.device().is_cpu() ||
      !at::isFloatingType(gradient.scalar_type()))
    throw InvalidArgument(
        c10::str("cannot take the norm of a gradient of ",
                 gradient.scalar_type(), " ", gradient.sizes(),
                 ": it must be dense, of floating point and on the CPU"));
  // Any order of the elements will do.
  const at::Tensor dense = gradient.is_non_overlapping_and_dense()
                               ? gradient
                               : gradient.contiguous();
  return sum_of_squares(static_cast<const std::byte*>(dense.const_data_ptr()),
                        static_cast<std::size_t>(dense.numel()),
                        data_type_of(dense.scalar_type()));
}

double norm_of(const std::vector<at::Tensor>& gradients) {
  double squares = 0;
  for (const at::Tensor& gradient : gradients) squares += squares_of(gradient);
  return std::sqrt(squares);
}

}  // namespace

double grad_norm(at::TensorList parameters) {
  const c10::AutoGradMode no_grad(false);
  return norm_of(gradients_of(parameters));
}

double clip_coefficient(double norm, double max_norm) {
  if (!(max_norm >= 0))
    throw InvalidArgument("gradients cannot be clipped to a norm of " +
                          std::to_string(max_norm));
  constexpr double kAgainstZero = 1e-6;  // PyTorch's
  const double coefficient = max_norm / (norm + kAgainstZero);
  return coefficient > 1 ? 1 : coefficient;
}

double clip_grad_norm(at::TensorList parameters, double max_norm) {
  const c10::AutoGradMode no_grad(false);
  const auto gradients = gradients_of(parameters);
  const double norm = norm_of(gradients);
  const double coefficient = clip_coefficient(norm, max_norm);
  if (coefficient == 1) return norm;
  for (const at::Tensor& gradient : gradients) gradient.mul_(coefficient);
  return norm;
}

}  // namespace lockstep
