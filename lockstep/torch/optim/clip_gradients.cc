#include "lockstep/torch/optim/clip_gradients.h"

#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <c10/core/GradMode.h>
#include <c10/util/StringUtil.h>

#include <cmath>
#include <unordered_set>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/ddp/update_kernels.h"
#include "lockstep/torch/tensor/tensor_buffer.h"
#include "lockstep/torch/tensor/tensor_lists.h"
#include "lockstep/torch/tensor/tensor_memory.h"

namespace lockstep {
namespace {

constexpr double kEuclidean = 2;

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

double squares_on_cpu(const at::Tensor& gradient) {
  // The order of the elements does not matter.
  const at::Tensor own = resolved(gradient);
  const at::Tensor dense =
      own.is_non_overlapping_and_dense() ? own : own.contiguous();
  return sum_of_squares(static_cast<const std::byte*>(dense.const_data_ptr()),
                        static_cast<std::size_t>(dense.numel()),
                        data_type_of(dense.scalar_type()));
}

// Gradients of one device and type.
at::Tensor squares_on_gpu(const std::vector<at::Tensor>& gradients) {
  const bool is_double = gradients.front().scalar_type() == at::kDouble;
  const auto norms =
      at::_foreach_norm(gradients, 2, is_double ? at::kDouble : at::kFloat);
  return at::stack(norms).to(at::kDouble).square().sum();
}

double checked_norm_of(const std::vector<at::Tensor>& gradients,
                       double norm_type) {
  check_norm_type(norm_type);
  for (const at::Tensor& gradient : gradients) check(gradient);
  return norm_of(gradients, norm_type);
}

}  // namespace

double sum_of_squares(at::TensorList tensors) {
  double squares = 0;
  std::vector<at::Tensor> on_gpus;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.is_cpu())
      squares += squares_on_cpu(tensor);
    else
      on_gpus.push_back(tensor);
  }
  for (const auto& list : by_device_and_type(on_gpus))
    squares += squares_on_gpu(list).item<double>();  // the host waits
  return squares;
}

at::Tensor sum_of_squares_there(const at::Tensor& tensor) {
  return tensor.is_cpu()
             ? at::scalar_tensor(squares_on_cpu(tensor), at::kDouble)
             : squares_on_gpu({tensor});
}

double grad_norm(at::TensorList parameters, double norm_type) {
  const c10::AutoGradMode no_grad(false);
  return checked_norm_of(gradients_of(parameters), norm_type);
}

void check_norm_type(double norm_type) {
  if (!(norm_type > 0))
    throw InvalidArgument(
        "gradients have no norm of p = " + std::to_string(norm_type) +
        "\n  next:    use a p above 0: 2, or infinity for "
        "the largest absolute value");
}

double norm_of(at::TensorList tensors, double norm_type) {
  if (norm_type == kEuclidean) return std::sqrt(sum_of_squares(tensors));
  std::vector<double> norms;
  for (const at::Tensor& tensor : tensors)
    if (tensor.numel() > 0)
      norms.push_back(at::linalg_vector_norm(tensor.to(at::kDouble), norm_type)
                          .item<double>());
  return norm_of_norms(norms, norm_type);
}

double norm_of_norms(std::span<const double> norms, double norm_type) {
  if (norms.empty()) return 0;
  const at::Tensor vector =
      at::tensor(at::ArrayRef<double>(norms.data(), norms.size()), at::kDouble);
  return at::linalg_vector_norm(vector, norm_type).item<double>();
}

double clip_coefficient(double norm, double max_norm) {
  if (!(max_norm >= 0))
    throw InvalidArgument("gradients cannot be clipped to a norm of " +
                          std::to_string(max_norm));
  constexpr double kAgainstZero = 1e-6;  // PyTorch's
  const double coefficient = max_norm / (norm + kAgainstZero);
  return coefficient > 1 ? 1 : coefficient;
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
