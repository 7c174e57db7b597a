#include "src/planning/gradient_tracker.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "lockstep/base/error.h"

namespace lockstep {

GradientTracker::GradientTracker(const BucketPlan& plan)
    : to_come_(plan.buckets.size()) {
  bucket_of_.reserve(plan.places.size());
  for (const auto& place : plan.places) bucket_of_.push_back(place.bucket);
  for (const auto& bucket : plan.buckets)
    LOCKSTEP_CHECK(!bucket.slots.empty(), "a bucket without parameters");
  expect(Counts(bucket_of_.size(), 1));
  begin_step();
}

void GradientTracker::expect(Counts counts) {
  LOCKSTEP_CHECK(
      counts.size() == bucket_of_.size(),
      fmt::format("{} counts for {}", counts.size(), bucket_of_.size()));
  expected_ = std::move(counts);
  to_come_.assign(to_come_.size(), 0);
  for (std::size_t i = 0; i < expected_.size(); ++i)
    if (expected_[i] > 0) ++to_come_[bucket_of_[i]];
}

GradientTracker::Arrival GradientTracker::begin_step() {
  awaited_ = to_come_;
  counts_.assign(bucket_of_.size(), 0);
  turns_.assign(bucket_of_.size(), 0);
  turn_ = 0;
  launched_ = 0;
  return hand_out();
}

GradientTracker::Arrival GradientTracker::arrived(std::size_t parameter) {
  LOCKSTEP_CHECK(
      parameter < bucket_of_.size(),
      fmt::format("parameter {} of {}", parameter, bucket_of_.size()));
  const std::size_t bucket = bucket_of_[parameter];
  const std::uint32_t count = ++counts_[parameter];
  turns_[parameter] = ++turn_;
  if (count < expected_[parameter]) return {.status = Status::kPartial};
  if (count > expected_[parameter])
    return {.status = bucket < launched_ ? Status::kRepeatedTooLate
                                         : Status::kRepeated};
  --awaited_[bucket];
  return hand_out();
}

GradientTracker::Arrival GradientTracker::hand_out() {
  const std::size_t first = launched_;
  while (launched_ < awaited_.size() && awaited_[launched_] == 0) ++launched_;
  return {.first_bucket = first, .bucket_count = launched_ - first};
}

std::vector<std::size_t> GradientTracker::missing() const {
  std::vector<std::size_t> result;
  for (std::size_t i = 0; i < counts_.size(); ++i) {
    const std::uint32_t least = expected_[i] == kUnknown ? 1 : expected_[i];
    if (counts_[i] < least) result.push_back(i);
  }
  return result;
}

std::vector<std::size_t> GradientTracker::arrival_order() const {
  std::vector<std::size_t> order(turns_.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto turn_of = [this](std::size_t parameter) {
    // A gradient that never arrived has turn 0 and follows all others.
    return turns_[parameter] - 1;
  };
  std::stable_sort(
      order.begin(), order.end(),
      [&](std::size_t a, std::size_t b) { return turn_of(a) < turn_of(b); });
  return order;
}

}  // namespace lockstep
