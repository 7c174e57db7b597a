// The buckets of a pass and how they are reduced: each by one asynchronous
// all-reduce, or as a communication hook says.
//
// Buckets are started in the plan's order while backward goes on, and waited
// for at its end. There the hook's next steps are taken, a bucket after the
// other and then again, until all are done.
//
// Threads: single-threaded, as the reducer that owns it.
// Errors:  what ProcessGroup's operations and the hook throw. When a hook or
// one
//          of its operations fails, the group is aborted for that reason.
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
#include "lockstep/ddp/bucket_plan.h"
#include "lockstep/torch/comm_hook.h"
#include "lockstep/torch/gradient_buckets.h"

namespace lockstep {

// Aborts, for `reason`, groups other than that of the buckets in which ranks
// may wait during a pass. Never blocks, never throws.
using AlsoAbort = std::function<void(const std::string& reason)>;

class BucketReduction {
 public:
  explicit BucketReduction(std::shared_ptr<ProcessGroup> group)
      : group_(std::move(group)) {}

  // Between passes. InvalidArgument for none, and when there is one already.
  void set_hook(std::shared_ptr<CommHook> hook);

  // What the next passes reduce; `plan` and `parameters` must stay alive.
  void follow(const BucketPlan& plan, std::span<const at::Tensor> parameters);

  // Begins a pass whose sums are divided by `divisor`.
  void begin_pass(int divisor);

  // Where its gradients are taken.
  GradientBuckets& buckets() { return *buckets_; }

  // Starts the bucket that is next, which has all its gradients.
  void start_next();
  std::size_t started() const { return started_; }

  // Completes them all. Waits for all even when one fails, since their memory
  // must not be touched before; throws the error that says why.
  void finish();

  // Ends the pass on all ranks, and with it what `also` aborts; the second does
  // only that.
  void abort(const std::string& reason) noexcept;
  void abort_others(const std::string& reason) noexcept;
  void when_aborted(AlsoAbort also) { also_abort_ = std::move(also); }

  // What the gradients are still to be divided by after finish().
  double left_to_divide_by() const;

 private:
  struct InFlight {
    HookProgress progress;
    bool done = false;
  };

  void start_hook(std::size_t bucket);
  void start_plain(std::size_t bucket);
  GradBucket bucket_for_hook(std::size_t bucket) const;
  void take_turns();
  at::Device device() const { return buckets_->flat(0).device(); }
  [[noreturn]] void fail();
  void wait_after_failure() noexcept;

  std::shared_ptr<ProcessGroup> group_;
  std::shared_ptr<CommHook> hook_;  // null: none
  AlsoAbort also_abort_;            // empty: nothing
  const BucketPlan* plan_ = nullptr;
  std::span<const at::Tensor> parameters_;
  std::vector<std::string> places_;         // by bucket, for messages
  std::optional<GradientBuckets> buckets_;  // from the plan's first pass on

  // Of the present pass.
  int divisor_ = 1;
  std::size_t started_ = 0;
  std::vector<InFlight> in_flight_;
  DeviceStreams started_on_;  // whose memory is used until finish()
};

}  // namespace lockstep
