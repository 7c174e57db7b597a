#include "src/planning/gradient_tracker.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <set>
#include <string>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

using testing::ElementsAre;
using Status = GradientTracker::Status;

// `count` parameters, `per_bucket` of them in a bucket, the last first.
BucketPlan plan_of(std::size_t count, std::size_t per_bucket) {
  const std::vector<ParameterSize> parameters(count, ParameterSize{1});
  const std::size_t cap = per_bucket * size_of(DataType::kFloat32);
  return plan_buckets(parameters,
                      {.first_bucket_bytes = cap, .bucket_bytes = cap});
}

// The expected answers, recomputed from scratch at every call.
class Oracle {
 public:
  explicit Oracle(const BucketPlan& plan) : plan_(plan) {}

  void arrived(std::size_t parameter) { arrived_.insert(parameter); }
  bool has(std::size_t parameter) const { return arrived_.contains(parameter); }

  // The number of buckets, from 0 on, without a missing gradient.
  std::size_t launchable() const {
    std::size_t count = 0;
    for (const auto& bucket : plan_.buckets) {
      for (const auto& slot : bucket.slots)
        if (!has(slot.parameter)) return count;
      ++count;
    }
    return count;
  }

  std::vector<std::size_t> missing() const {
    std::vector<std::size_t> result;
    for (std::size_t i = 0; i < plan_.places.size(); ++i)
      if (!has(i)) result.push_back(i);
    return result;
  }

 private:
  const BucketPlan& plan_;
  std::set<std::size_t> arrived_;
};

void arrive_and_compare(GradientTracker& tracker, Oracle& oracle,
                        std::size_t parameter) {
  const std::size_t before = oracle.launchable();
  const bool repeated = oracle.has(parameter);
  oracle.arrived(parameter);
  const auto arrival = tracker.arrived(parameter);
  EXPECT_EQ(arrival.status != Status::kFinal, repeated);
  EXPECT_EQ(arrival.bucket_count, oracle.launchable() - before);
  if (arrival.bucket_count > 0) {
    EXPECT_EQ(arrival.first_bucket, before);
  }
  EXPECT_EQ(tracker.launched(), oracle.launchable());
  EXPECT_EQ(tracker.missing(), oracle.missing());
  EXPECT_EQ(tracker.complete(), oracle.missing().empty());
}

TEST(GradientTracker, HandsOutEveryBucketOnceAndInOrderForAnyArrivalOrder) {
  // Every order of 6 parameters, in buckets of every size.
  for (std::size_t per_bucket = 1; per_bucket <= 6; ++per_bucket) {
    const BucketPlan plan = plan_of(6, per_bucket);
    GradientTracker tracker(plan);
    std::vector<std::size_t> order{0, 1, 2, 3, 4, 5};
    do {
      tracker.begin_step();
      Oracle oracle(plan);
      for (const std::size_t parameter : order)
        arrive_and_compare(tracker, oracle, parameter);
      ASSERT_EQ(tracker.launched(), plan.buckets.size());
      ASSERT_EQ(tracker.arrival_order(), order);
    } while (!HasFailure() &&
             std::next_permutation(order.begin(), order.end()));
  }
}

TEST(GradientTracker, AgreesWithTheObviousVersionOnRandomSteps) {
  for (std::uint64_t seed = 0; seed < 500; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    std::vector<ParameterSize> parameters(1 + random() % 30);
    for (ParameterSize& size : parameters)
      size = {random() % 50, kAllDataTypes[random() % 3]};
    const BucketPlan plan = plan_buckets(
        parameters,
        {.first_bucket_bytes = random() % 200, .bucket_bytes = random() % 400});
    GradientTracker tracker(plan);
    for (int step = 0; step < 3; ++step) {
      tracker.begin_step();
      Oracle oracle(plan);
      // Some gradients arrive twice, some never.
      for (std::size_t i = 0; i < 2 * parameters.size(); ++i)
        arrive_and_compare(tracker, oracle, random() % parameters.size());
    }
    if (HasFailure()) return;
  }
}

TEST(GradientTracker, HoldsACompleteBucketBackForThoseBeforeIt) {
  GradientTracker tracker(plan_of(4, 2));  // buckets {3, 2} and {1, 0}
  EXPECT_EQ(tracker.arrived(0).bucket_count, 0u);
  EXPECT_EQ(tracker.arrived(1).bucket_count, 0u);
  EXPECT_EQ(tracker.arrived(2).bucket_count, 0u);
  const auto last = tracker.arrived(3);
  EXPECT_EQ(last.first_bucket, 0u);
  EXPECT_EQ(last.bucket_count, 2u);
}

TEST(GradientTracker, TellsARepeatedArrivalFromOneThatIsTooLate) {
  GradientTracker tracker(plan_of(4, 2));
  EXPECT_EQ(tracker.arrived(3).status, Status::kFinal);
  EXPECT_EQ(tracker.arrived(3).status, Status::kRepeated);
  EXPECT_EQ(tracker.arrived(2).status, Status::kFinal);
  EXPECT_EQ(tracker.arrived(2).status, Status::kRepeatedTooLate);
  EXPECT_EQ(tracker.arrived(3).bucket_count, 0u);
}

TEST(GradientTracker, CallsARepeatInABucketHeldBackNotTooLate) {
  GradientTracker tracker(plan_of(4, 2));
  tracker.arrived(0);
  tracker.arrived(1);
  EXPECT_EQ(tracker.arrived(0).status, Status::kRepeated);
}

TEST(GradientTracker, NamesTheParametersThatAreMissing) {
  GradientTracker tracker(plan_of(5, 2));
  tracker.arrived(3);
  tracker.arrived(0);
  EXPECT_THAT(tracker.missing(), ElementsAre(1, 2, 4));
  EXPECT_FALSE(tracker.complete());
}

TEST(GradientTracker, ForgetsTheLastStepWhenANewOneBegins) {
  GradientTracker tracker(plan_of(2, 1));
  tracker.arrived(1);
  tracker.begin_step();
  EXPECT_THAT(tracker.missing(), ElementsAre(0, 1));
  EXPECT_THAT(tracker.counts(), ElementsAre(0, 0));
  EXPECT_EQ(tracker.arrived(1).status, Status::kFinal);
  EXPECT_EQ(tracker.launched(), 1u);
}

TEST(GradientTracker, OfNoParametersIsCompleteAtOnce) {
  GradientTracker tracker(plan_of(0, 1));
  EXPECT_TRUE(tracker.complete());
  EXPECT_EQ(tracker.launched(), 0u);
}

TEST(GradientTracker, ItsArrivalOrderMakesAPlanInWhichNothingIsHeldBack) {
  const std::vector<ParameterSize> parameters(9, ParameterSize{1});
  const BucketPlanOptions options{.first_bucket_bytes = 8, .bucket_bytes = 12};
  std::vector<std::size_t> order(9);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::mt19937_64 random(7);
  std::shuffle(order.begin(), order.end(), random);

  GradientTracker first(plan_buckets(parameters, options));
  for (const std::size_t parameter : order) first.arrived(parameter);
  EXPECT_EQ(first.arrival_order(), order);
  GradientTracker rebuilt(
      plan_buckets(parameters, first.arrival_order(), options));
  for (const std::size_t parameter : order)
    EXPECT_LE(rebuilt.arrived(parameter).bucket_count, 1u);
  EXPECT_TRUE(rebuilt.complete());
}

TEST(GradientTracker, OrdersByLastArrivalsAndPutsWhatNeverCameLast) {
  GradientTracker tracker(plan_of(5, 5));
  tracker.expect({GradientTracker::kUnknown, 1, 1, 2, 1});
  tracker.begin_step();
  for (const std::size_t parameter : {3, 0, 4, 3, 0})
    tracker.arrived(parameter);
  EXPECT_THAT(tracker.arrival_order(), ElementsAre(4, 3, 0, 1, 2));
  EXPECT_THAT(tracker.counts(), ElementsAre(2, 0, 0, 2, 1));
}

TEST(GradientTracker, WaitsForAsManyArrivalsAsAreExpected) {
  GradientTracker tracker(plan_of(4, 2));  // buckets {3, 2} and {1, 0}
  tracker.expect({1, 1, 1, 3});
  tracker.begin_step();
  tracker.arrived(2);
  EXPECT_EQ(tracker.arrived(3).status, Status::kPartial);
  EXPECT_EQ(tracker.arrived(3).bucket_count, 0u);
  EXPECT_THAT(tracker.missing(), ElementsAre(0, 1, 3));
  EXPECT_EQ(tracker.arrived(3).bucket_count, 1u);
  EXPECT_EQ(tracker.arrived(3).status, Status::kRepeatedTooLate);
}

TEST(GradientTracker, DoesNotWaitForWhatIsNotExpected) {
  GradientTracker tracker(plan_of(6, 2));  // buckets {5, 4}, {3, 2}, {1, 0}
  tracker.expect({0, 1, 0, 0, 0, 0});
  EXPECT_EQ(tracker.begin_step().bucket_count, 2u);
  EXPECT_THAT(tracker.missing(), ElementsAre(1));
  EXPECT_EQ(tracker.arrived(0).status, Status::kRepeated);
  EXPECT_EQ(tracker.arrived(4).status, Status::kRepeatedTooLate);
  EXPECT_EQ(tracker.arrived(1).bucket_count, 1u);
  EXPECT_TRUE(tracker.complete());
}

TEST(GradientTracker, HoldsBackWhatComesAnUnknownNumberOfTimes) {
  GradientTracker tracker(plan_of(3, 1));
  tracker.expect(GradientTracker::Counts(3, GradientTracker::kUnknown));
  tracker.begin_step();
  for (const std::size_t parameter : {2, 1, 2}) {
    const auto arrival = tracker.arrived(parameter);
    EXPECT_EQ(arrival.status, Status::kPartial);
    EXPECT_EQ(arrival.bucket_count, 0u);
  }
  EXPECT_THAT(tracker.missing(), ElementsAre(0));
  EXPECT_FALSE(tracker.complete());
}

TEST(GradientTracker, ChecksThatTheParameterIsInThePlan) {
  GradientTracker tracker(plan_of(2, 1));
  EXPECT_THROW(tracker.arrived(2), InternalError);
}

}  // namespace
}  // namespace lockstep
