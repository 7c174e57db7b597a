// The operation by which a bucket that has all its gradients leaves this rank,
// and by which the result comes back.
//
// BucketReduction starts one operation per bucket and waits for all of them at
// the end of the pass. This file has an all-reduce and a communication hook. An
// operation with other traffic, such as a push to a server, implements the same
// interface, and is given to BucketReduction.
//
// Threads: single-threaded, like the reducer that uses it.
// Errors:  from start() and from the steps that it returns: those of
//          ProcessGroup's operations and of the hook.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <exception>
#include <memory>
#include <span>
#include <string>

#include "lockstep/comm/process_group.h"
#include "lockstep/torch/comm_hooks.h"
#include "src/planning/bucket_plan.h"
#include "src/torch/gradient/gradient_buckets.h"

namespace lockstep {

// A bucket whose gradients were taken and packed. It refers to memory of the
// reduction.
struct CompleteBucket {
  std::size_t index;
  const BucketPlan& plan;
  std::span<const at::Tensor> parameters;
  const GradientBuckets& buckets;
  const std::shared_ptr<ProcessGroup>& group;
  int divisor;               // of the sum over the ranks
  const std::string& label;  // for messages
};

class BucketOperation {
 public:
  virtual ~BucketOperation() = default;

  // How the gradients that it is given must lie.
  virtual GradientBuckets::Layout layout() const = 0;

  virtual HookProgress start(const CompleteBucket& bucket) = 0;

  // The divisor that the caller must still apply after a pass with `divisor`
  // over `ranks` ranks.
  virtual double left_to_divide_by(int divisor, int ranks) const = 0;

  // The text that tells the other ranks of `error`, which start() or a step
  // threw; empty if they know of it.
  virtual std::string told_to_others(const std::exception_ptr& error) const = 0;

  // As CommHook's.
  virtual void abort(const std::string& /*reason*/) noexcept {}
  virtual bool reduces_in_part(const at::Tensor& /*parameter*/) const {
    return false;
  }
  virtual bool replicas_may_differ() const { return false; }
};

// Reduces each bucket where its gradients lie.
std::unique_ptr<BucketOperation> all_reduce_operation();
// `hook` must not be null.
std::unique_ptr<BucketOperation> hook_operation(std::shared_ptr<CommHook> hook);

}  // namespace lockstep
