// Normalizing a batch that is spread over the ranks of a group: the arithmetic
// of SyncBatchNorm, and its place in autograd.
//
// Threads: every rank of the group calls these at the same point of its
//          program, and runs the backward pass of what normalize() gave.
// Errors:  InvalidArgument on every rank where there is too little to
//          normalize; what ProcessGroup's operations throw.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "lockstep/comm/process_group.h"

namespace lockstep {

// Of all ranks' samples, for each feature; float64, the same bits on every
// rank.
struct GroupMoments {
  at::Tensor mean;
  at::Tensor variance;  // divided by `count`
  double count = 0;     // of numbers a feature, of all ranks together
};

// `input` is samples x features x …, and may have no samples.
GroupMoments gather_moments(ProcessGroup& group, const at::Tensor& input);

// What normalized numbers are multiplied with and added to; undefined: nothing.
struct Affine {
  at::Tensor weight, bias;
};

struct NormalizeOptions {
  std::shared_ptr<ProcessGroup> group;  // whose moments they are
  double eps = 1e-5;
};

// (input - mean) / sqrt(variance + eps) * weight + bias. In the backward pass
// the input's gradient takes account of what every rank's moments owe to it, by
// one all-reduce.
at::Tensor normalize(const at::Tensor& input, const Affine& affine,
                     const GroupMoments& moments,
                     const NormalizeOptions& options);

}  // namespace lockstep
