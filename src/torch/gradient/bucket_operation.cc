#include "src/torch/gradient/bucket_operation.h"

#include <utility>

#include "src/torch/gradient/pass_errors.h"

namespace lockstep {
namespace {

// An average divides by the number of ranks.
class AllReduceOperation final : public BucketOperation {
 public:
  GradientBuckets::Layout layout() const override {
    return GradientBuckets::Layout::kFast;
  }

  HookProgress start(const CompleteBucket& bucket) override {
    const ReduceOp op = averages(bucket.divisor, bucket.group->size())
                            ? ReduceOp::kAverage
                            : ReduceOp::kSum;
    return {bucket.group->all_reduce(bucket.buckets.buffers(bucket.index), op,
                                     {.label = bucket.label})};
  }

  double left_to_divide_by(int divisor, int ranks) const override {
    return averages(divisor, ranks) ? 1 : divisor;
  }

  // The group's failure is known to all ranks.
  std::string told_to_others(const std::exception_ptr&) const override {
    return {};
  }

 private:
  static bool averages(int divisor, int ranks) { return divisor == ranks; }
};

// A hook leaves averages over all ranks.
class HookOperation final : public BucketOperation {
 public:
  explicit HookOperation(std::shared_ptr<CommHook> hook)
      : hook_(std::move(hook)) {}

  GradientBuckets::Layout layout() const override {
    return GradientBuckets::Layout::kFlat;
  }

  HookProgress start(const CompleteBucket& bucket) override {
    GradBucket view{.index = bucket.index,
                    .is_last = bucket.index + 1 == bucket.plan.buckets.size(),
                    .buffer = bucket.buckets.flat(bucket.index),
                    .group = bucket.group};
    for (const auto& slot : bucket.plan.buckets[bucket.index].slots) {
      view.gradients.push_back(bucket.buckets.slot(slot.parameter));
      view.parameters.push_back(bucket.parameters[slot.parameter]);
    }
    return hook_->start(view);
  }

  double left_to_divide_by(int divisor, int ranks) const override {
    return static_cast<double>(divisor) / ranks;
  }

  // The other ranks would wait for operations that this rank does not start.
  std::string told_to_others(const std::exception_ptr& error) const override {
    return "a communication hook failed: " + text_of_exception(error);
  }

  void abort(const std::string& reason) noexcept override {
    hook_->abort(reason);
  }
  bool reduces_in_part(const at::Tensor& parameter) const override {
    return hook_->reduces_in_part(parameter);
  }
  bool replicas_may_differ() const override {
    return hook_->replicas_may_differ();
  }

 private:
  std::shared_ptr<CommHook> hook_;
};

}  // namespace

std::unique_ptr<BucketOperation> all_reduce_operation() {
  return std::make_unique<AllReduceOperation>();
}

std::unique_ptr<BucketOperation> hook_operation(
    std::shared_ptr<CommHook> hook) {
  return std::make_unique<HookOperation>(std::move(hook));
}

}  // namespace lockstep
