// Reduces the buckets of a pass: each by one BucketOperation, an asynchronous
// all-reduce or what a communication hook does.
//
// Buckets are started in the plan's order while backward runs, and waited for
// at its end. There the operations' next steps run round-robin over the
// buckets, until all are done.
//
// Threads: single-threaded, like the reducer that owns it.
// Errors:  those of the operation. When one fails of which other ranks do not
//          know, the group is aborted with that reason.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/torch/comm_hooks.h"
#include "src/planning/bucket_plan.h"
#include "src/torch/gradient/bucket_operation.h"
#include "src/torch/gradient/gradient_buckets.h"

namespace lockstep {

// Aborts, for `reason`, the groups besides the buckets' own in which ranks may
// wait during a pass. Never blocks, never throws.
using AlsoAbort = std::function<void(const std::string& reason)>;

class BucketReduction {
 public:
  explicit BucketReduction(
      std::shared_ptr<ProcessGroup> group,
      std::unique_ptr<BucketOperation> operation = all_reduce_operation())
      : group_(std::move(group)), operation_(std::move(operation)) {}

  // Call it between passes. InvalidArgument for a null hook, and when a hook is
  // set already.
  void set_hook(std::shared_ptr<CommHook> hook);

  // Sets what later passes reduce; `plan` and `parameters` must stay alive.
  void follow(const BucketPlan& plan, std::span<const at::Tensor> parameters);

  const BucketOperation& operation() const { return *operation_; }

  // Begins a pass whose sums are divided by `divisor`.
  void begin_pass(int divisor);

  // Takes in the pass's gradients.
  GradientBuckets& buckets() { return *buckets_; }

  // finish() waits for this operation too, which travels beside the buckets.
  void add(Work work) { in_flight_.push_back({{std::move(work)}}); }

  // Starts the next bucket, which must have all its gradients.
  void start_next();
  std::size_t started() const { return started_; }

  // Completes all buckets. Waits for all even when one fails, since their
  // memory must not be touched before; throws the error that names the cause.
  void finish();

  // abort() ends the pass on all ranks and calls `also`; abort_others() only
  // calls `also`.
  void abort(const std::string& reason) noexcept;
  void abort_others(const std::string& reason) noexcept;
  void when_aborted(AlsoAbort also) { also_abort_ = std::move(also); }

  // The divisor that the caller still has to apply to the gradients after
  // finish().
  double left_to_divide_by() const;

 private:
  struct InFlight {
    HookProgress progress;
    bool done = false;
  };

  void take_turns();
  at::Device device() const { return buckets_->flat(0).device(); }
  bool tell_others();
  void wait_after_failure() noexcept;

  std::shared_ptr<ProcessGroup> group_;
  std::unique_ptr<BucketOperation> operation_;
  bool has_hook_ = false;
  AlsoAbort also_abort_;  // empty: nothing
  const BucketPlan* plan_ = nullptr;
  std::span<const at::Tensor> parameters_;
  std::vector<std::string> labels_;         // by bucket, for messages
  std::optional<GradientBuckets> buckets_;  // from the plan's first pass on

  // Of the current pass.
  int divisor_ = 1;
  std::size_t started_ = 0;
  std::vector<InFlight> in_flight_;
  DeviceStreams started_on_;  // they use the memory until finish()
};

}  // namespace lockstep
