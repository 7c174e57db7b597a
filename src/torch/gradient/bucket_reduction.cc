#include "src/torch/gradient/bucket_reduction.h"

#include <exception>

#include "lockstep/base/error.h"
#include "src/torch/gradient/pass_errors.h"

namespace lockstep {

void BucketReduction::set_hook(std::shared_ptr<CommHook> hook) {
  if (!hook) throw InvalidArgument("register_comm_hook: the hook is null");
  if (hook_)
    throw InvalidArgument(
        "register_comm_hook: a communication hook is registered already"
        "\n  next:    write one hook that does the work of both, or wrap the "
        "module again");
  hook_ = std::move(hook);
  buckets_.reset();
}

// The next pass allocates the memory: the old slots are still the .grad that
// the optimizer is about to read, and most are free by then.
void BucketReduction::follow(const BucketPlan& plan,
                             std::span<const at::Tensor> parameters) {
  plan_ = &plan;
  parameters_ = parameters;
  buckets_.reset();
  labels_.clear();
  for (std::size_t i = 0; i < plan.buckets.size(); ++i)
    labels_.push_back("gradients, bucket " + std::to_string(i + 1) + " of " +
                      std::to_string(plan.buckets.size()));
}

void BucketReduction::begin_pass(int divisor) {
  using Layout = GradientBuckets::Layout;
  divisor_ = divisor;
  started_ = 0;
  in_flight_.clear();
  if (!buckets_)
    buckets_.emplace(parameters_, *plan_, *group_,
                     hook_ ? Layout::kFlat : Layout::kFast);
  buckets_->declare_complete();
}

void BucketReduction::start_next() {
  const std::size_t bucket = started_++;
  buckets_->pack(bucket);
  started_on_.add_current(device());
  if (hook_)
    start_hook(bucket);
  else
    start_plain(bucket);
  if (started_ == plan_->buckets.size() &&
      buckets_->completeness_travels_alone())
    in_flight_.push_back(
        {{group_->all_reduce(buckets_->completeness(), ReduceOp::kSum,
                             {.label = "whether all gradients arrived"})}});
}

void BucketReduction::start_plain(std::size_t bucket) {
  const ReduceOp op =
      divisor_ == group_->size() ? ReduceOp::kAverage : ReduceOp::kSum;
  in_flight_.push_back({{group_->all_reduce(buckets_->buffers(bucket), op,
                                            {.label = labels_[bucket]})}});
}

void BucketReduction::start_hook(std::size_t bucket) {
  try {
    in_flight_.push_back({hook_->start(bucket_for_hook(bucket))});
  } catch (...) {
    fail();
  }
}

GradBucket BucketReduction::bucket_for_hook(std::size_t bucket) const {
  GradBucket view{.index = bucket,
                  .is_last = bucket + 1 == plan_->buckets.size(),
                  .buffer = buckets_->flat(bucket),
                  .group = group_};
  for (const BucketPlan::Slot& slot : plan_->buckets[bucket].slots) {
    view.gradients.push_back(buckets_->slot(slot.parameter));
    view.parameters.push_back(parameters_[slot.parameter]);
  }
  return view;
}

void BucketReduction::finish() {
  try {
    while (!in_flight_.empty()) take_turns();
    started_on_.follow_current(device());
  } catch (...) {
    fail();
  }
}

// Runs one step of each bucket.
void BucketReduction::take_turns() {
  for (auto& [progress, done] : in_flight_) {
    progress.work.wait();
    done = !progress.then;
    if (!done) progress = progress.then();
  }
  std::erase_if(in_flight_, [](const InFlight& one) { return one.done; });
}

// Call it while handling an exception. Without a hook the exception came from
// the group, whose failure all ranks know. The other ranks do not know of a
// hook's exception: they would wait for operations that this rank does not
// start.
void BucketReduction::fail() {
  const std::exception_ptr error = std::current_exception();
  if (hook_)
    abort("on rank " + std::to_string(group_->rank()) +
          " a communication hook failed: " + text_of_exception(error));
  else
    wait_after_failure();
  std::rethrow_exception(error);
}

void BucketReduction::abort(const std::string& reason) noexcept {
  group_->abort(reason);
  if (hook_) hook_->abort(reason);
  abort_others(reason);
  wait_after_failure();
}

void BucketReduction::abort_others(const std::string& reason) noexcept {
  if (also_abort_) also_abort_(reason);
}

void BucketReduction::wait_after_failure() noexcept {
  std::vector<Work> works;
  for (const InFlight& one : in_flight_) works.push_back(one.progress.work);
  try {
    wait_for_all(works);
  } catch (...) {
    // The caller sees the error that ended the pass.
  }
}

// An average divides by the number of ranks, and so does a hook.
double BucketReduction::left_to_divide_by() const {
  if (divisor_ == group_->size()) return 1;
  return hook_ ? static_cast<double>(divisor_) / group_->size() : divisor_;
}

}  // namespace lockstep
