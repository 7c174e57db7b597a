// What travels in the place of gradients: a user's own way to reduce a bucket.
//
//     class Halved : public lockstep::CommHook {
//       lockstep::HookProgress start(const lockstep::GradBucket& bucket)
//       override {
//         bucket.buffer.div_(2);
//         return {lockstep::all_reduce_average(bucket)};
//       }
//     };
//     model.register_comm_hook(std::make_shared<Halved>());
//
// A hook is asked for each bucket in each pass that is reduced, and leaves in
// the bucket's buffer what is to become the gradients, alike on every rank. It
// starts what it can and returns; when backward ends, what is left of all
// buckets goes on in turn, so that the operations of one travel while another
// computes.
//
// Operations must be started in the same order on every rank. They are when
// each step of a hook starts the same operations everywhere: the order of
// buckets and of turns is the same on all ranks.
//
// Memory that an operation works on must live until the operation is done: in
// the bucket, in what `then` captures, or in the hook itself. A step that
// starts several operations waits for all but the last, at the latest in
// `then`; one that may throw does so before it starts one.
//
// Threads: called by the thread that runs backward(), with gradients off.
// Errors:  what a hook or its operations throw, backward() throws; the group is
//          aborted for that reason, so that no other rank waits for this one.
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

// A handle: copies refer to the same memory, which must not be kept beyond the
// pass.
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
  // The ranks among which the gradients are to be averaged; a duplicate of the
  // group that the module was wrapped with, so that what a hook starts in it
  // has an order of its own. On GPUs, and where the backend has no duplicates,
  // it is that group.
  std::shared_ptr<ProcessGroup> group{};
};

// What is on its way, and what is to be done with it: when `work` is complete,
// `then` goes on. Without `then` the bucket is done.
struct HookProgress {
  Work work{};
  std::function<HookProgress()> then{};
};

class CommHook {
 public:
  virtual ~CommHook() = default;

  // Begins to reduce `bucket`, in which all gradients of this rank are.
  virtual HookProgress start(const GradBucket& bucket) = 0;

  // A pass has ended by an exception, and the bucket's group is aborted for
  // `reason`: the place to abort groups of the hook's own. Never blocks.
  virtual void abort(std::string_view /*reason*/) noexcept {}
};

// Starts what is done without a hook.
Work all_reduce_average(const GradBucket& bucket);

// `bucket` with other memory: `buffer` holds as many elements, of any type.
GradBucket with_buffer(const GradBucket& bucket, const at::Tensor& buffer);

// `progress`, and `last` when it has come to its end.
HookProgress followed_by(HookProgress progress, std::function<void()> last);

}  // namespace lockstep
