// Normalizes a batch that is spread over the ranks of a group: the arithmetic
// of SyncBatchNorm, and its autograd function.
//
// Threads: every rank of the group calls these at the same point of its
//          program, and runs the backward pass of normalize()'s result.
// Errors:  InvalidArgument on every rank when the batch is too small to
//          normalize; those of ProcessGroup's operations.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "lockstep/comm/process_group.h"

namespace lockstep {

// Moments of all ranks' samples, per feature; float64, the same bits on every
// rank.
struct GroupMoments {
  at::Tensor mean;
  at::Tensor variance;  // divided by `count`
  double count = 0;     // numbers per feature, on all ranks together
};

// `input` is samples x features x …, and may have no samples.
GroupMoments gather_moments(ProcessGroup& group, const at::Tensor& input);

// Applied to the normalized numbers; undefined tensors are skipped.
struct Affine {
  at::Tensor weight, bias;
};

struct NormalizeOptions {
  std::shared_ptr<ProcessGroup> group;  // the ranks of the moments
  double eps = 1e-5;
};

// (input - mean) / sqrt(variance + eps) * weight + bias. In the backward pass
// one all-reduce adds the gradient that flows to the input through the moments
// of all ranks.
at::Tensor normalize(const at::Tensor& input, const Affine& affine,
                     const GroupMoments& moments,
                     const NormalizeOptions& options);

}  // namespace lockstep
