#include "lockstep/ddp/gradient_tracker.h"

#include <fmt/format.h>

#include <algorithm>

#include "lockstep/base/error.h"

namespace lockstep {

GradientTracker::GradientTracker(const BucketPlan& plan) {
  bucket_of_.reserve(plan.places.size());
  for (const auto& place : plan.places) bucket_of_.push_back(place.bucket);
  bucket_sizes_.reserve(plan.buckets.size());
  for (const auto& bucket : plan.buckets) {
    LOCKSTEP_CHECK(!bucket.slots.empty(), "a bucket without parameters");
    bucket_sizes_.push_back(bucket.slots.size());
  }
  arrival_order_.reserve(bucket_of_.size());
  begin_step();
}

void GradientTracker::begin_step() {
  awaited_ = bucket_sizes_;
  has_arrived_.assign(bucket_of_.size(), 0);
  arrival_order_.clear();
  launched_ = 0;
}

GradientTracker::Arrival GradientTracker::arrived(std::size_t parameter) {
  LOCKSTEP_CHECK(
      parameter < bucket_of_.size(),
      fmt::format("parameter {} of {}", parameter, bucket_of_.size()));
  const std::size_t bucket = bucket_of_[parameter];
  if (has_arrived_[parameter] != 0)
    return {.status = bucket < launched_ ? Status::kRepeatedTooLate
                                         : Status::kRepeated};
  has_arrived_[parameter] = 1;
  arrival_order_.push_back(parameter);
  --awaited_[bucket];

  const std::size_t first = launched_;
  while (launched_ < awaited_.size() && awaited_[launched_] == 0) ++launched_;
  return {.first_bucket = first, .bucket_count = launched_ - first};
}

std::vector<std::size_t> GradientTracker::missing() const {
  std::vector<std::size_t> result;
  result.reserve(bucket_of_.size() - arrival_order_.size());
  for (std::size_t parameter = 0; parameter < has_arrived_.size(); ++parameter)
    if (has_arrived_[parameter] == 0) result.push_back(parameter);
  return result;
}

}  // namespace lockstep
