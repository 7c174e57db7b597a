// Communication hooks: a user's own way to reduce a bucket of gradients.
//
//     class Halved : public lockstep::CommHook {
//       using Bucket = lockstep::GradBucket;
//       lockstep::HookProgress start(const Bucket& bucket) override {
//         bucket.buffer.div_(2);
//         return {lockstep::all_reduce_average(bucket)};
//       }
//     };
//     model.register_comm_hook(std::make_shared<Halved>());
//
// A reducing pass calls the hook once per bucket. The hook leaves the new
// gradients in the bucket's buffer, the same on every rank. It starts what it
// can and returns; when backward ends, the remaining steps of all buckets run
// in turn, so that one bucket communicates while another computes.
//
// Operations must start in the same order on every rank. They do if each step
// of a hook starts the same operations on all ranks: the order of buckets and
// of turns is the same everywhere.
//
// Memory that an operation works on must live until the operation is done: in
// the bucket, in a capture of `then`, or in the hook itself. A step that starts
// several operations waits for all except the last, at the latest in `then`; a
// step that may throw does so before it starts an operation.
//
// Threads: called by the thread that runs backward(), with gradients off.
// Errors:  backward() throws what a hook or its operations throw; the group is
//          aborted with that reason, so that no other rank waits for this one.
// Source:  torch.distributed.GradBucket and its register_comm_hook().
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "lockstep/comm/process_group.h"

namespace lockstep {

// A handle: copies refer to the same memory. A hook must not use that memory
// after the pass.
struct GradBucket {
  std::size_t index = 0;
  bool is_last = false;  // of this pass
  // All gradients one after another, without gaps: one dimension, one type.
  at::Tensor buffer{};
  // Views of it with the parameters' shapes and strides, and the parameters. In
  // the place of one that is known to have sparse gradients, which travel by
  // themselves, is a tensor without elements.
  std::vector<at::Tensor> gradients{};
  std::vector<at::Tensor> parameters{};
  // The ranks that average the gradients: a duplicate of the group that the
  // module was wrapped with, so that a hook's operations have an order of their
  // own. On GPUs, and where the backend has no duplicates, it is that group
  // itself.
  std::shared_ptr<ProcessGroup> group{};
};

// An operation under way and the step that follows it: when `work` is complete,
// `then` runs. Without `then` the bucket is done.
struct HookProgress {
  Work work{};
  std::function<HookProgress()> then{};
};

class CommHook {
 public:
  virtual ~CommHook() = default;

  // Begins to reduce `bucket`, which holds all its gradients of this rank.
  virtual HookProgress start(const GradBucket& bucket) = 0;

  // Called when a pass ended in an exception and the bucket's group is aborted
  // for `reason`: a hook aborts its own groups here. Never blocks.
  virtual void abort(std::string_view /*reason*/) noexcept {}

  // Whether a pass leaves parts of the gradient of `parameter` unreduced. Then
  // a later pass must not add to it before zero_grad(): backward() throws
  // InvalidArgument, unless .grad has been changed in place in between, as by
  // clipping.
  virtual bool reduces_in_part(const at::Tensor& /*parameter*/) const {
    return false;
  }

  // Whether the passes from here on leave the ranks' models different, as
  // gradients that stay on their rank do: they are then not compared. The same
  // on every rank.
  virtual bool replicas_may_differ() const { return false; }
};

// Starts the operation that runs without a hook.
Work all_reduce_average(const GradBucket& bucket);

// `bucket` with other memory: `buffer` has the same number of elements, of any
// type.
GradBucket with_buffer(const GradBucket& bucket, const at::Tensor& buffer);

// `progress`, followed by `last` at its end.
HookProgress followed_by(HookProgress progress, std::function<void()> last);

}  // namespace lockstep
