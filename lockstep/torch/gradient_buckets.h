// The memory behind a BucketPlan: a flat buffer a bucket, and in it a slot for
// each parameter's gradient.
//
// A slot has the parameter's own strides where these are dense, row-major ones
// otherwise: the layout that autograd gives a gradient, so that accumulating
// into the slot and the optimizer's passes over it stay sequential. Parameters'
// .grad become their slots; the gradient itself is copied once at most.
//
// The last bucket carries one element more, in which ranks tell each other that
// not all of their gradients arrived: at no cost to a step in which all did.
//
// Threads: single-threaded, as the reducer that owns it.
// Errors:  InvalidArgument naming the parameter whose gradient is sparse, is
//          gone or has another shape.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lockstep/comm/buffer.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/ddp/bucket_plan.h"

namespace lockstep {

class GradientBuckets {
 public:
  // Allocates from `group`, zeroed. `plan` must not be empty.
  GradientBuckets(std::span<const at::Tensor> parameters,
                  const BucketPlan& plan, ProcessGroup& group);

  // Moves the .grad of `tensor`, the parameter of this number, into its slot,
  // and makes the slot its .grad. Does nothing where that is so already.
  void take(std::size_t parameter, const at::Tensor& tensor,
            const std::string& name);

  // Sets the slot of a gradient that did not arrive to zero.
  void clear(std::size_t parameter);

  // What travels for this bucket.
  Buffer buffer(std::size_t bucket) const { return buffers_[bucket]; }

  // Before the last bucket travels: whether this rank has all its gradients.
  void declare_complete();
  void declare_incomplete();
  // After it has: whether some rank has not.
  bool some_rank_is_incomplete() const;

 private:
  std::vector<Buffer> buffers_;    // by bucket
  std::vector<at::Tensor> slots_;  // by parameter; they own the memory
  at::Tensor incomplete_;          // the one element behind the last bucket
};

}  // namespace lockstep
