// Clipping gradients by their global norm, over the memory once. The norm is
// the Euclidean one, or the p-norm of any p above 0; that of infinity is the
// largest absolute value.
//
// Where all ranks hold the averaged gradients, as DistributedDataParallel
// leaves them, every rank comes to the same norm, to the bit, and nothing is
// sent; for a p other than 2 and infinity as far as ranks have as many compute
// threads and the same processor, since LibTorch adds up in their order.
// FusedSGD and its kind, and ZeroRedundancyOptimizer, have a method of
// this name that saves the second pass, and ZeroRedundancyOptimizer's lets each
// rank read its share only.
//
// Threads: functions of their arguments.
// Errors:  InvalidArgument for a gradient that is sparse or not of floating
//          point, for a largest norm that is no number or negative, and for a
//          p that is not above 0.
// Source:  torch.nn.utils.clip_grad_norm_.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>

namespace lockstep {

// The sum of the squares of all elements of dense tensors of floating point, in
// float64; on a GPU each tensor's norm is taken in float32, and the host waits.
double sum_of_squares(at::TensorList tensors);

// The same of one, as a number on its device (float64, []), which nobody waits
// for.
at::Tensor sum_of_squares_there(const at::Tensor& tensor);

// The norm of all gradients together, as of one vector: for p = 2 by
// sum_of_squares(), else in float64, tensor by tensor; 0 when no parameter has
// one. One that is given twice counts once.
double grad_norm(at::TensorList parameters, double norm_type = 2);

// The same of tensors, and of parts of a vector whose norms are known.
double norm_of(at::TensorList tensors, double norm_type);
double norm_of_norms(std::span<const double> norms, double norm_type);

// Refuses what is no p of a norm.
void check_norm_type(double norm_type);

// What gradients of norm `norm` are to be multiplied with so that they get no
// longer than `max_norm`: 1 when they are not. NaN for a norm of NaN and 0 for
// an infinite one, as in PyTorch.
double clip_coefficient(double norm, double max_norm);

// Multiplies the gradients with that, in place, and returns what their norm
// was.
double clip_grad_norm(at::TensorList parameters, double max_norm,
                      double norm_type = 2);

}  // namespace lockstep
