#include "src/torch/optim/gradient_norm.h"

#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>

#include <cmath>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/torch/tensor_collectives.h"
#include "src/planning/update_kernels.h"
#include "src/torch/tensor/tensor_lists.h"
#include "src/torch/tensor/tensor_memory.h"

namespace lockstep {
namespace {

constexpr double kEuclidean = 2;

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

}  // namespace lockstep
