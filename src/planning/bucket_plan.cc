#include "src/planning/bucket_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <numeric>
#include <utility>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

using Bucket = BucketPlan::Bucket;

void check_order(std::span<const std::size_t> order, std::size_t count) {
  if (order.size() != count)
    throw InvalidArgument(
        fmt::format("cannot plan buckets: the order names {} parameters of {}",
                    order.size(), count));
  std::vector<bool> named(count, false);
  for (const std::size_t parameter : order) {
    if (parameter >= count)
      throw InvalidArgument(fmt::format(
          "cannot plan buckets: the order names parameter {}, but there are {}",
          parameter, count));
    if (named[parameter])
      throw InvalidArgument(
          fmt::format("cannot plan buckets: the order names parameter {} twice",
                      parameter));
    named[parameter] = true;
  }
}

// Builds the buckets of one type and device. A model has a handful of such
// classes, so a linear search finds them.
struct OpenBucket {
  Bucket bucket = {};
  std::size_t bytes = 0;
  std::size_t cap_bytes = 0;
};

class Planner {
 public:
  Planner(std::span<const ParameterSize> parameters,
          const BucketPlanOptions& options)
      : parameters_(parameters), options_(options) {}

  void add(std::size_t parameter) {
    const ParameterSize& size = parameters_[parameter];
    OpenBucket& open = open_bucket_for(size);
    open.bucket.slots.push_back(
        {.parameter = parameter, .elements = size.elements});
    open.bytes += size.elements * size_of(size.type);
    if (open.bytes < open.cap_bytes) return;
    finished_.push_back(std::exchange(
        open.bucket, Bucket{.type = size.type, .device = size.device}));
    open.bytes = 0;
    open.cap_bytes = options_.bucket_bytes;
  }

  // All buckets, including those that never reached their cap.
  std::vector<Bucket> finish() {
    for (OpenBucket& open : open_)
      if (!open.bucket.slots.empty())
        finished_.push_back(std::move(open.bucket));
    return std::move(finished_);
  }

 private:
  OpenBucket& open_bucket_for(const ParameterSize& size) {
    const auto found =
        std::find_if(open_.begin(), open_.end(), [&](const OpenBucket& open) {
          return open.bucket.type == size.type &&
                 open.bucket.device == size.device;
        });
    if (found != open_.end()) return *found;
    return open_.emplace_back(
        OpenBucket{.bucket = {.type = size.type, .device = size.device},
                   .cap_bytes = options_.first_bucket_bytes});
  }

  std::span<const ParameterSize> parameters_;
  const BucketPlanOptions& options_;
  std::vector<OpenBucket> open_;
  std::vector<Bucket> finished_;
};

// A bucket is complete when its last gradient has arrived; a bucket that was
// closed late may be complete before one that was closed early.
void sort_by_completion(std::vector<Bucket>& buckets,
                        std::span<const std::size_t> order) {
  std::vector<std::size_t> turn(order.size());
  for (std::size_t i = 0; i < order.size(); ++i) turn[order[i]] = i;
  std::sort(
      buckets.begin(), buckets.end(), [&](const Bucket& a, const Bucket& b) {
        return turn[a.slots.back().parameter] < turn[b.slots.back().parameter];
      });
}

}  // namespace

BucketPlan plan_buckets(std::span<const ParameterSize> parameters,
                        const BucketPlanOptions& options) {
  std::vector<std::size_t> order(parameters.size());
  std::iota(order.rbegin(), order.rend(), std::size_t{0});
  return plan_buckets(parameters, order, options);
}

BucketPlan plan_buckets(std::span<const ParameterSize> parameters,
                        std::span<const std::size_t> order,
                        const BucketPlanOptions& options) {
  check_order(order, parameters.size());
  Planner planner(parameters, options);
  for (const std::size_t parameter : order) planner.add(parameter);

  BucketPlan plan{.buckets = planner.finish(), .places = {}};
  sort_by_completion(plan.buckets, order);
  plan.places.resize(parameters.size());
  for (std::size_t bucket = 0; bucket < plan.buckets.size(); ++bucket) {
    const auto& slots = plan.buckets[bucket].slots;
    for (std::size_t position = 0; position < slots.size(); ++position)
      plan.places[slots[position].parameter] = {.bucket = bucket,
                                                .position = position};
  }
  return plan;
}

}  // namespace lockstep
