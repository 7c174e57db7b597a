#include "src/planning/bucket_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <set>
#include <string>

#include "src/base/testing/error_text.h"

namespace lockstep {
namespace {

using testing::ElementsAre;

constexpr std::size_t kMiB = std::size_t{1} << 20;

std::vector<ParameterSize> floats(const std::vector<std::size_t>& elements) {
  std::vector<ParameterSize> result;
  for (const std::size_t count : elements) result.push_back({count});
  return result;
}

std::vector<std::size_t> parameters_of(const BucketPlan::Bucket& bucket) {
  std::vector<std::size_t> result;
  for (const auto& slot : bucket.slots) result.push_back(slot.parameter);
  return result;
}

// The parameters of every bucket.
std::vector<std::vector<std::size_t>> contents(const BucketPlan& plan) {
  std::vector<std::vector<std::size_t>> result;
  for (const auto& bucket : plan.buckets)
    result.push_back(parameters_of(bucket));
  return result;
}

std::string message_of(const std::vector<std::size_t>& order) {
  return error_text([&] { plan_buckets(floats({1, 2, 3}), order); });
}

// The naive version, one class of parameters at a time: cut the class's
// parameters, in order, where the bytes since the last cut reach the cap.
std::vector<std::vector<std::size_t>> cut_one_class(
    const std::vector<ParameterSize>& parameters,
    const std::vector<std::size_t>& members, const BucketPlanOptions& options) {
  std::vector<std::vector<std::size_t>> buckets;
  std::size_t begin = 0;
  while (begin < members.size()) {
    const std::size_t cap =
        begin == 0 ? options.first_bucket_bytes : options.bucket_bytes;
    std::size_t end = begin;
    std::size_t bytes = 0;
    do {
      const ParameterSize& size = parameters[members[end++]];
      bytes += size.elements * size_of(size.type);
    } while (end < members.size() && bytes < cap);
    buckets.emplace_back(members.begin() + begin, members.begin() + end);
    begin = end;
  }
  return buckets;
}

// All classes, the buckets put in order of their last parameter's turn.
std::vector<std::vector<std::size_t>> oracle(
    const std::vector<ParameterSize>& parameters,
    const std::vector<std::size_t>& order, const BucketPlanOptions& options) {
  std::vector<std::vector<std::size_t>> result;
  for (const DataType type : kAllDataTypes) {
    for (int device = 0; device < 3; ++device) {
      std::vector<std::size_t> members;
      for (const std::size_t parameter : order)
        if (parameters[parameter].type == type &&
            parameters[parameter].device.index == device)
          members.push_back(parameter);
      for (auto& bucket : cut_one_class(parameters, members, options))
        result.push_back(std::move(bucket));
    }
  }
  const auto turn = [&](const std::vector<std::size_t>& bucket) {
    return std::find(order.begin(), order.end(), bucket.back());
  };
  std::sort(result.begin(), result.end(),
            [&](const auto& a, const auto& b) { return turn(a) < turn(b); });
  return result;
}

struct Case {
  std::vector<ParameterSize> parameters;
  std::vector<std::size_t> order;
  BucketPlanOptions options;
};

Case random_case(std::mt19937_64& random) {
  const auto below = [&](std::size_t end) {
    return static_cast<std::size_t>(random() % end);
  };
  Case made;
  const std::size_t types = 1 + below(4);
  const std::size_t devices = 1 + below(3);
  const std::size_t most_elements = std::size_t{1} << below(12);
  made.parameters.resize(below(40));
  for (ParameterSize& size : made.parameters) {
    size.elements = below(4) == 0 ? 0 : below(most_elements);
    size.type = kAllDataTypes[below(types)];
    size.device = {DeviceKind::kCpu, static_cast<int>(below(devices))};
  }
  made.order.resize(made.parameters.size());
  std::iota(made.order.begin(), made.order.end(), std::size_t{0});
  std::shuffle(made.order.begin(), made.order.end(), random);
  made.options = {.first_bucket_bytes = below(5000),
                  .bucket_bytes = below(20000)};
  return made;
}

void check_places(const BucketPlan& plan, const Case& given) {
  ASSERT_EQ(plan.places.size(), given.parameters.size());
  for (std::size_t parameter = 0; parameter < plan.places.size(); ++parameter) {
    const auto [bucket, position] = plan.places[parameter];
    ASSERT_LT(bucket, plan.buckets.size());
    ASSERT_LT(position, plan.buckets[bucket].slots.size());
    const BucketPlan::Slot& slot = plan.buckets[bucket].slots[position];
    EXPECT_EQ(slot.parameter, parameter);
    EXPECT_EQ(slot.elements, given.parameters[parameter].elements);
    EXPECT_EQ(plan.buckets[bucket].type, given.parameters[parameter].type);
    EXPECT_EQ(plan.buckets[bucket].device, given.parameters[parameter].device);
  }
}

TEST(BucketPlan, EqualsTheObviousVersionOnRandomModels) {
  for (std::uint64_t seed = 0; seed < 3000; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    const Case given = random_case(random);
    const BucketPlan plan =
        plan_buckets(given.parameters, given.order, given.options);
    ASSERT_EQ(contents(plan),
              oracle(given.parameters, given.order, given.options));
    check_places(plan, given);
    if (HasFailure()) return;
  }
}

TEST(BucketPlan, TakesParametersInReverseOrderOfRegistration) {
  EXPECT_THAT(contents(plan_buckets(floats({1, 2, 3}))),
              ElementsAre(ElementsAre(2, 1, 0)));
}

TEST(BucketPlan, ClosesTheFirstBucketAtOneMebibyteAndLaterOnesAtTwentyFive) {
  const std::size_t mebibyte_of_floats = kMiB / 4;
  const std::vector<ParameterSize> parameters =
      floats(std::vector<std::size_t>(60, mebibyte_of_floats));
  const BucketPlan plan = plan_buckets(parameters);
  ASSERT_EQ(plan.buckets.size(), 4u);
  EXPECT_EQ(plan.buckets[0].slots.size(), 1u);
  EXPECT_EQ(plan.buckets[1].slots.size(), 25u);
  EXPECT_EQ(plan.buckets[2].slots.size(), 25u);
  EXPECT_EQ(plan.buckets[3].slots.size(), 9u);
}

TEST(BucketPlan, LetsTheGradientThatReachesTheCapIntoTheBucket) {
  const BucketPlanOptions options{.first_bucket_bytes = 8, .bucket_bytes = 16};
  EXPECT_THAT(
      contents(plan_buckets(floats({100, 3, 1, 1, 1}), options)),
      ElementsAre(ElementsAre(4, 3), ElementsAre(2, 1), ElementsAre(0)));
}

TEST(BucketPlan, NeverMixesTypesOrDevices) {
  const std::vector<ParameterSize> parameters{
      {1, DataType::kFloat32},
      {1, DataType::kBFloat16},
      {1, DataType::kFloat32, {DeviceKind::kCuda, 0}},
      {1, DataType::kFloat32, {DeviceKind::kCuda, 1}},
      {1, DataType::kFloat32}};
  EXPECT_THAT(contents(plan_buckets(parameters)),
              ElementsAre(ElementsAre(3), ElementsAre(2), ElementsAre(1),
                          ElementsAre(4, 0)));
}

TEST(BucketPlan, GivesEachTypeAFirstBucketOfItsOwn) {
  const BucketPlanOptions options{.first_bucket_bytes = 4, .bucket_bytes = 8};
  std::vector<ParameterSize> parameters(6);
  for (std::size_t i = 0; i < 6; ++i)
    parameters[i] = {1, i % 2 == 0 ? DataType::kFloat32 : DataType::kInt32};
  EXPECT_THAT(contents(plan_buckets(parameters, options)),
              ElementsAre(ElementsAre(5), ElementsAre(4), ElementsAre(3, 1),
                          ElementsAre(2, 0)));
}

TEST(BucketPlan, PutsBucketsInTheOrderInWhichTheyAreComplete) {
  // The int32 bucket never reaches its cap, but is complete before the float32
  // bucket that does.
  const BucketPlanOptions options{.first_bucket_bytes = 8};
  const std::vector<ParameterSize> parameters{
      {1, DataType::kFloat32}, {1, DataType::kInt32}, {1, DataType::kFloat32}};
  EXPECT_THAT(contents(plan_buckets(parameters, options)),
              ElementsAre(ElementsAre(1), ElementsAre(2, 0)));
}

TEST(BucketPlan, OfNoParametersIsEmpty) {
  const BucketPlan plan = plan_buckets({});
  EXPECT_TRUE(plan.buckets.empty());
  EXPECT_TRUE(plan.places.empty());
}

TEST(BucketPlan, KeepsParametersWithoutElements) {
  const BucketPlan plan = plan_buckets(floats({0, 0}));
  ASSERT_EQ(plan.buckets.size(), 1u);
  EXPECT_THAT(parameters_of(plan.buckets[0]), ElementsAre(1, 0));
}

TEST(BucketPlan, WithACapOfZeroGivesEveryGradientItsBucket) {
  const BucketPlanOptions options{.first_bucket_bytes = 0, .bucket_bytes = 0};
  EXPECT_EQ(plan_buckets(floats({0, 1, 2}), options).buckets.size(), 3u);
}

TEST(BucketPlan, RefusesAnOrderThatIsNoPermutation) {
  EXPECT_THAT(message_of({0, 1}), testing::HasSubstr("2 parameters of 3"));
  EXPECT_THAT(message_of({0, 1, 1}), testing::HasSubstr("parameter 1 twice"));
  EXPECT_THAT(message_of({0, 3, 1}), testing::HasSubstr("there are 3"));
  EXPECT_EQ(message_of({2, 0, 1}), "no error");
}

}  // namespace
}  // namespace lockstep
