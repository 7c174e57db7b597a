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

namespace lockstep {

// The norm of all gradients as one vector; 0 when no parameter has a gradient.
// It is computed in float64, but for p = 2 on a GPU each tensor's in float32. A
// parameter that is given twice counts once.
double grad_norm(at::TensorList parameters, double norm_type = 2);

// Multiplies the gradients by the factor that brings their norm to at most
// `max_norm`, in place, and returns their norm before. The factor is NaN for a
// norm of NaN and 0 for an infinite one, as in PyTorch.
double clip_grad_norm(at::TensorList parameters, double max_norm,
                      double norm_type = 2);

}  // namespace lockstep
