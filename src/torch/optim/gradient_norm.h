// Norms of gradients, and the factor that clips them: what clip_grad_norm(),
// the optimizers and the hooks share.
//
// Errors:  InvalidArgument; see the functions.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>

namespace lockstep {

// The sum of the squares of all elements of dense floating-point tensors, in
// float64. On a GPU each tensor's norm is computed in float32, and the host
// waits.
double sum_of_squares(at::TensorList tensors);

// The same for one tensor, as a scalar on its device (float64, []), without
// waiting for the device.
at::Tensor sum_of_squares_there(const at::Tensor& tensor);

// The norm of tensors as one vector, and of a vector whose parts have these
// norms.
double norm_of(at::TensorList tensors, double norm_type);
double norm_of_norms(std::span<const double> norms, double norm_type);

// InvalidArgument unless the p is above 0.
void check_norm_type(double norm_type);

// The factor that brings gradients of norm `norm` to at most `max_norm`: 1 when
// they are within it. NaN for a norm of NaN and 0 for an infinite one, as in
// PyTorch.
double clip_coefficient(double norm, double max_norm);

}  // namespace lockstep
