#include "lockstep/torch/reducer.h"

#include <c10/core/GradMode.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <optional>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/ddp/bucket_plan.h"
#include "lockstep/ddp/gradient_tracker.h"
#include "lockstep/torch/autograd_join.h"
#include "lockstep/torch/gradient_buckets.h"
#include "lockstep/torch/heap_allocator.h"
#include "lockstep/torch/missing_gradients.h"
#include "lockstep/torch/tensor_buffer.h"

namespace lockstep {
namespace {

ParameterSize size_for_plan(const NamedParameter& parameter) {
  const at::Tensor& tensor = parameter.tensor;
  try {
    if (!tensor.requires_grad() || !tensor.is_leaf())
      throw InvalidArgument("it is no leaf that requires a gradient");
    if (tensor.layout() != at::kStrided) throw InvalidArgument("it is sparse");
    if (!tensor.device().is_cpu())
      throw InvalidArgument("it is not on the CPU");
    return {.elements = static_cast<std::size_t>(tensor.numel()),
            .type = data_type_of(tensor.scalar_type())};
  } catch (const InvalidArgument& error) {
    throw InvalidArgument("parameter " + parameter.name +
                          " cannot be reduced: " + error.what());
  }
}

bool same_slots(const BucketPlan& a, const BucketPlan& b) {
  return std::ranges::equal(
      a.places, b.places, [](const auto& place, const auto& other) {
        return place.bucket == other.bucket && place.position == other.position;
      });
}

}  // namespace

class Reducer::State : public std::enable_shared_from_this<State> {
 public:
  State(std::vector<NamedParameter> parameters,
        std::shared_ptr<ProcessGroup> group, const ReducerOptions& options);

  std::size_t bucket_count() const { return plan_.buckets.size(); }

 private:
  void gradient_arrived(std::size_t parameter);
  void begin_pass();
  void finish_pass();
  void abandon_pass() noexcept;
  void start_buckets(std::size_t first, std::size_t count);
  void start_incomplete_buckets();
  void wait_for_buckets();
  void plan_in_order_of_arrival();
  void adopt_plan(BucketPlan plan);

  std::vector<at::Tensor> tensors_;
  std::vector<std::string> names_;
  std::vector<ParameterSize> sizes_;
  std::shared_ptr<ProcessGroup> group_;
  BucketPlanOptions options_;

  BucketPlan plan_;
  GradientTracker tracker_;
  std::vector<std::string> places_;         // by bucket, for messages
  std::optional<GradientBuckets> buckets_;  // from the first pass on
  std::vector<Work> works_;                 // by bucket, in the present pass
  bool in_pass_ = false;
  bool follows_arrival_ = false;  // whether the plan is in order of arrival
  std::optional<GradientHooks> hooks_;
};

Reducer::State::State(std::vector<NamedParameter> parameters,
                      std::shared_ptr<ProcessGroup> group,
                      const ReducerOptions& options)
    : group_(std::move(group)),
      options_{.first_bucket_bytes = options.first_bucket_bytes,
               .bucket_bytes = options.bucket_bytes},
      tracker_(plan_) {
  if (parameters.empty())
    throw InvalidArgument(
        "there is nothing to reduce: no parameter requires a gradient\n"
        "  next:    use the module without DistributedDataParallel, or call "
        "requires_grad_(true) on what it should learn");
  for (NamedParameter& parameter : parameters) {
    sizes_.push_back(size_for_plan(parameter));
    tensors_.push_back(std::move(parameter.tensor));
    names_.push_back(std::move(parameter.name));
  }
  allocate_tensors_from(group_->heap());
  if (group_->size() == 1) return;
  adopt_plan(plan_buckets(sizes_, options_));
  hooks_.emplace(tensors_, names_, [this](std::size_t parameter) {
    gradient_arrived(parameter);
  });
}

void Reducer::State::adopt_plan(BucketPlan plan) {
  plan_ = std::move(plan);
  tracker_ = GradientTracker(plan_);
  places_.clear();
  for (std::size_t i = 0; i < plan_.buckets.size(); ++i)
    places_.push_back("gradients, bucket " + std::to_string(i + 1) + " of " +
                      std::to_string(plan_.buckets.size()));
  // Memory is taken by the next pass: the old slots live on in the .grad that
  // the optimizer is about to read, and are mostly free by then.
  buckets_.reset();
}

void Reducer::State::gradient_arrived(std::size_t parameter) {
  const c10::AutoGradMode no_grad(false);
  if (!in_pass_) begin_pass();
  buckets_->take(parameter, tensors_[parameter], names_[parameter]);
  const auto arrival = tracker_.arrived(parameter);
  if (arrival.status == GradientTracker::Status::kRepeatedTooLate)
    throw InvalidArgument(
        "parameter " + names_[parameter] +
        " got a second gradient in one backward pass, after the first was "
        "reduced already\n"
        "  likely:  a custom autograd function runs backward() inside "
        "backward()\n"
        "  next:    compute the loss without a backward pass in its backward "
        "pass");
  start_buckets(arrival.first_bucket, arrival.bucket_count);
}

void Reducer::State::begin_pass() {
  at_end_of_backward([self = shared_from_this()] { self->finish_pass(); },
                     [self = shared_from_this()] { self->abandon_pass(); });
  in_pass_ = true;
  tracker_.begin_step();
  works_.clear();
  if (!buckets_) buckets_.emplace(tensors_, plan_, *group_);
  buckets_->declare_complete();
}

void Reducer::State::start_buckets(std::size_t first, std::size_t count) {
  for (std::size_t bucket = first; bucket < first + count; ++bucket)
    works_.push_back(group_->all_reduce(buckets_->buffers(bucket),
                                        ReduceOp::kAverage,
                                        {.place = places_[bucket]}));
}

void Reducer::State::finish_pass() {
  const c10::AutoGradMode no_grad(false);
  in_pass_ = false;
  const bool complete = tracker_.complete();
  if (!complete) start_incomplete_buckets();
  wait_for_buckets();
  buckets_->let_go();
  if (buckets_->some_rank_is_incomplete())
    throw_missing_gradients(*group_, names_, tracker_.missing());
  if (!follows_arrival_) plan_in_order_of_arrival();
}

void Reducer::State::start_incomplete_buckets() {
  for (const std::size_t parameter : tracker_.missing())
    buckets_->take_zeros(parameter);
  buckets_->declare_incomplete();
  start_buckets(tracker_.launched(),
                plan_.buckets.size() - tracker_.launched());
}

// Waits for all of them even when one fails, since their memory must not be
// touched before; the first error is the one that says why.
void Reducer::State::wait_for_buckets() {
  std::exception_ptr first;
  for (const Work& work : works_) {
    try {
      work.wait();
    } catch (...) {
      if (!first) first = std::current_exception();
    }
  }
  works_.clear();
  if (first) std::rethrow_exception(first);
}

void Reducer::State::abandon_pass() noexcept {
  in_pass_ = false;
  group_->abort("rank " + std::to_string(group_->rank()) +
                " left its backward pass by an exception, with gradients of "
                "this step still to be reduced; read its log");
  try {
    wait_for_buckets();
  } catch (...) {
    // The exception that ended the pass is the one that the caller sees.
  }
}

// Gradients may arrive in another order on each rank; rank 0's is taken, so
// that all have one plan.
void Reducer::State::plan_in_order_of_arrival() {
  const auto arrived = tracker_.arrival_order();
  std::vector<std::int64_t> order(arrived.begin(), arrived.end());
  group_->broadcast(view(order), 0, {.place = "order of gradients"}).wait();
  follows_arrival_ = true;
  BucketPlan plan = plan_buckets(
      sizes_, std::vector<std::size_t>(order.begin(), order.end()), options_);
  if (!same_slots(plan, plan_)) adopt_plan(std::move(plan));
}

Reducer::Reducer(std::vector<NamedParameter> parameters,
                 std::shared_ptr<ProcessGroup> group,
                 const ReducerOptions& options)
    : state_(std::make_shared<State>(std::move(parameters), std::move(group),
                                     options)) {}

Reducer::~Reducer() = default;
Reducer::Reducer(Reducer&&) noexcept = default;
Reducer& Reducer::operator=(Reducer&&) noexcept = default;

std::size_t Reducer::bucket_count() const { return state_->bucket_count(); }

}  // namespace lockstep
