#include "src/torch/gradient/bucket_reduction.h"

#include <exception>

#include "lockstep/base/error.h"

namespace lockstep {

void BucketReduction::set_hook(std::shared_ptr<CommHook> hook) {
  if (!hook) throw InvalidArgument("register_comm_hook: the hook is null");
  if (has_hook_)
    throw InvalidArgument(
        "register_comm_hook: a communication hook is registered already"
        "\n  next:    write one hook that does the work of both, or wrap the "
        "module again");
  operation_ = hook_operation(std::move(hook));
  has_hook_ = true;
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
  divisor_ = divisor;
  started_ = 0;
  in_flight_.clear();
  if (!buckets_)
    buckets_.emplace(parameters_, *plan_, *group_, operation_->layout());
  buckets_->declare_complete();
}

void BucketReduction::start_next() {
  const std::size_t bucket = started_++;
  buckets_->pack(bucket);
  started_on_.add_current(device());
  try {
    in_flight_.push_back({operation_->start({.index = bucket,
                                             .plan = *plan_,
                                             .parameters = parameters_,
                                             .buckets = *buckets_,
                                             .group = group_,
                                             .divisor = divisor_,
                                             .label = labels_[bucket]})});
  } catch (...) {
    tell_others();
    throw;
  }
  if (started_ == plan_->buckets.size() &&
      buckets_->completeness_travels_alone())
    in_flight_.push_back(
        {{group_->all_reduce(buckets_->completeness(), ReduceOp::kSum,
                             {.label = "whether all gradients arrived"})}});
}

void BucketReduction::finish() {
  try {
    while (!in_flight_.empty()) take_turns();
    started_on_.follow_current(device());
  } catch (...) {
    if (!tell_others()) wait_after_failure();
    throw;
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

// Call it while handling an exception. Whether it has aborted the pass.
bool BucketReduction::tell_others() {
  const std::string told = operation_->told_to_others(std::current_exception());
  if (told.empty()) return false;
  abort("on rank " + std::to_string(group_->rank()) + " " + told);
  return true;
}

void BucketReduction::abort(const std::string& reason) noexcept {
  group_->abort(reason);
  operation_->abort(reason);
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

double BucketReduction::left_to_divide_by() const {
  return operation_->left_to_divide_by(divisor_, group_->size());
}

}  // namespace lockstep
