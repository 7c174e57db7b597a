#include <ATen/ops/_foreach_mul.h>
#include <c10/core/GradMode.h>
#include <c10/util/StringUtil.h>

#include <unordered_set>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/torch/optimizers.h"
#include "src/torch/optim/gradient_norm.h"
#include "src/torch/tensor/tensor_lists.h"
#include "src/torch/tensor/tensor_memory.h"

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

void check(const at::Tensor& gradient) {
  if (gradient.layout() == at::kStrided &&
      at::isFloatingType(gradient.scalar_type()))
    return;
  throw InvalidArgument(c10::str("cannot take the norm of a gradient of ",
                                 gradient.scalar_type(), " ", gradient.sizes(),
                                 ": expected a dense floating-point tensor"));
}

double checked_norm_of(const std::vector<at::Tensor>& gradients,
                       double norm_type) {
  check_norm_type(norm_type);
  for (const at::Tensor& gradient : gradients) check(gradient);
  return norm_of(gradients, norm_type);
}

}  // namespace

double grad_norm(at::TensorList parameters, double norm_type) {
  const c10::AutoGradMode no_grad(false);
  return checked_norm_of(gradients_of(parameters), norm_type);
}

double clip_grad_norm(at::TensorList parameters, double max_norm,
                      double norm_type) {
  const c10::AutoGradMode no_grad(false);
  // LibTorch's operations on lists cannot write to unresolved ones.
  for (const at::Tensor& parameter : parameters) resolve_gradient(parameter);
  const auto gradients = gradients_of(parameters);
  const double norm = checked_norm_of(gradients, norm_type);
  const double coefficient = clip_coefficient(norm, max_norm);
  if (coefficient == 1) return norm;
  for (const auto& list : by_device_and_type(gradients))
    at::_foreach_mul_(list, coefficient);
  return norm;
}

}  // namespace lockstep
