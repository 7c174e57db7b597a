// Clips gradients by their global norm, in one pass over the memory. The norm
// is the Euclidean one, or the p-norm of any p above 0; the infinity norm is
// the largest absolute value.
//
// Where all ranks hold the averaged gradients, as DistributedDataParallel
// leaves them, every rank computes the same norm, to the bit, and sends
// nothing. For a p other than 2 and infinity this needs the same number of
// compute threads and the same processor on all ranks, since LibTorch's order
// of additions depends on both. FusedSGD and its kind, and
// ZeroRedundancyOptimizer, have a method of this name that saves the second
// pass; with ZeroRedundancyOptimizer's each rank reads only its share.
//
// Errors:  InvalidArgument for a gradient that is sparse or not of floating
//          point, for a max_norm that is NaN or negative, and for a p that is
//          not above 0.
// Source:  torch.nn.utils.clip_grad_norm_.
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

// The norm of all gradients as one vector: for p = 2 by sum_of_squares(), else
// in float64, tensor by tensor; 0 when no parameter has a gradient. A parameter
// that is given twice counts once.
double grad_norm(at::TensorList parameters, double norm_type = 2);

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

// Multiplies the gradients by that factor, in place, and returns their norm
// before.
double clip_grad_norm(at::TensorList parameters, double max_norm,
                      double norm_type = 2);

}  // namespace lockstep
