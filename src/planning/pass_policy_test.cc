#include "src/planning/pass_policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>

namespace lockstep {
namespace {

using Rule = PassPolicy::Rule;
using Part = PassPolicy::Part;
using Meaning = PassPolicy::Arrival::Meaning;
using testing::ElementsAre;
using testing::IsEmpty;

// Of parameters that have a bucket each, the last one the first.
PassPolicy policy_of(Rule rule, std::size_t parameters) {
  PassPolicy policy(rule, parameters);
  const std::size_t bytes = size_of(DataType::kFloat32);
  policy.follow(
      plan_buckets(std::vector<ParameterSize>(parameters, ParameterSize{1}),
                   {.first_bucket_bytes = bytes, .bucket_bytes = bytes}));
  return policy;
}

void pass_locally(PassPolicy& policy, const PassPolicy::Indices& gradients) {
  policy.begin(PassKind::kLocal);
  for (const std::size_t parameter : gradients) policy.arrived(parameter);
  policy.end();
}

// A pass in which each of them arrives as it may.
void pass_reduced(PassPolicy& policy, const PassPolicy::Indices& gradients) {
  policy.begin(PassKind::kReduced);
  policy.begin_reduction();
  for (const std::size_t parameter : gradients)
    EXPECT_NE(policy.arrived(parameter).meaning, Meaning::kUnexpected)
        << parameter;
  policy.end();
  policy.end_reduction(Part::kTrains);
}

void begin_reduced(PassPolicy& policy) {
  policy.begin(PassKind::kReduced);
  policy.begin_reduction();
}

TEST(PassPolicy, ReducesOutsideOfNoSync) {
  PassPolicy policy(Rule::kEveryGradient, 1);
  EXPECT_EQ(policy.decide(), PassKind::kReduced);
  EXPECT_FALSE(policy.expects_reduced_pass());
  EXPECT_EQ(policy.forward_begins(), PassKind::kReduced);
  EXPECT_TRUE(policy.expects_reduced_pass());
  EXPECT_EQ(policy.decide(), PassKind::kReduced);
}

TEST(PassPolicy, GoesByTheScopeOfTheForwardPass) {
  PassPolicy policy(Rule::kEveryGradient, 1);
  policy.enter_no_sync();
  EXPECT_EQ(policy.forward_begins(), PassKind::kLocal);
  policy.leave_no_sync();
  EXPECT_EQ(policy.decide(), PassKind::kLocal);
  EXPECT_EQ(policy.decide(), PassKind::kReduced);

  policy.forward_begins();
  policy.enter_no_sync();
  EXPECT_EQ(policy.decide(), PassKind::kReduced);
  EXPECT_EQ(policy.decide(), PassKind::kLocal);
}

TEST(PassPolicy, ReducesIfOneOfSeveralForwardPassesSaysSo) {
  PassPolicy policy(Rule::kEveryGradient, 1);
  for (const bool first : {true, false}) {
    if (first) policy.forward_begins();
    policy.enter_no_sync();
    policy.forward_begins();
    policy.leave_no_sync();
    if (!first) policy.forward_begins();
    EXPECT_EQ(policy.decide(), PassKind::kReduced) << first;
  }
}

TEST(PassPolicy, StaysLocalUntilTheOutermostScopeIsLeft) {
  PassPolicy policy(Rule::kEveryGradient, 1);
  policy.enter_no_sync();
  policy.enter_no_sync();
  policy.leave_no_sync();
  EXPECT_EQ(policy.decide(), PassKind::kLocal);
  policy.leave_no_sync();
  EXPECT_EQ(policy.decide(), PassKind::kReduced);
}

TEST(PassPolicy, LetsOnlyACounterDecideOnceThereIsOne) {
  struct EverySecond : PassCounter {
    PassKind begins() override {
      return ++passes % 2 == 0 ? PassKind::kReduced : PassKind::kLocal;
    }
    void arrived(std::size_t parameter) override {
      if (parameter == 1) throw std::runtime_error("refused");
      ++gradients;
    }
    bool expects_more() const override { return passes == 2; }
    void reduced(bool incomplete) override { was_incomplete = incomplete; }
    void abandoned() noexcept override { passes = 0; }
    int passes = 0, gradients = 0;
    bool was_incomplete = false;
  };
  const auto counter = std::make_shared<EverySecond>();
  PassPolicy policy = policy_of(Rule::kEveryGradient, 2);
  policy.forward_begins();
  policy.count_by(counter);
  EXPECT_FALSE(policy.expects_reduced_pass());
  policy.begin(policy.decide());
  EXPECT_EQ(policy.under_way(), PassKind::kLocal);
  EXPECT_FALSE(policy.expects_more());
  policy.arrived(0);
  policy.end();
  policy.begin(policy.decide());
  policy.begin_reduction();
  EXPECT_EQ(policy.arrived(0).meaning, Meaning::kFinal);
  EXPECT_THROW(policy.arrived(1), std::runtime_error);
  EXPECT_EQ(counter->gradients, 2);
  EXPECT_TRUE(policy.expects_more());
  policy.reduced(true);
  EXPECT_TRUE(counter->was_incomplete);
  EXPECT_EQ(policy.abandon(), PassKind::kReduced);
  EXPECT_EQ(counter->passes, 0);
}

TEST(PassPolicy, KnowsThePassUnderWay) {
  PassPolicy policy(Rule::kEveryGradient, 1);
  EXPECT_EQ(policy.under_way(), std::nullopt);
  EXPECT_EQ(policy.end(), std::nullopt);
  policy.begin(PassKind::kLocal);
  EXPECT_EQ(policy.under_way(), PassKind::kLocal);
  EXPECT_EQ(policy.end(), PassKind::kLocal);
  policy.begin(PassKind::kReduced);
  EXPECT_EQ(policy.abandon(), PassKind::kReduced);
  EXPECT_EQ(policy.under_way(), std::nullopt);
}

TEST(PassPolicy, HandsOutBucketsInThePlansOrderAsTheirGradientsArrive) {
  PassPolicy policy = policy_of(Rule::kEveryGradient, 3);
  begin_reduced(policy);
  const auto early = policy.arrived(1);
  EXPECT_EQ(early.meaning, Meaning::kFinal);
  EXPECT_EQ(early.bucket_count, 0u);
  const auto both = policy.arrived(2);
  EXPECT_EQ(both.first_bucket, 0u);
  EXPECT_EQ(both.bucket_count, 2u);
  EXPECT_THAT(policy.missing(), ElementsAre(0));
}

TEST(PassPolicy, HandsOutNothingInALocalPass) {
  PassPolicy policy = policy_of(Rule::kEveryGradient, 1);
  policy.begin(PassKind::kLocal);
  const auto arrival = policy.arrived(0);
  EXPECT_EQ(arrival.meaning, Meaning::kStays);
  EXPECT_EQ(arrival.bucket_count, 0u);
}

TEST(PassPolicy, HandsOutGradientsThatAreHeldOutsideOfAPass) {
  PassPolicy policy = policy_of(Rule::kEveryGradient, 1);
  policy.begin_reduction();
  EXPECT_EQ(policy.held(0).bucket_count, 1u);
}

TEST(PassPolicy, AwaitsEveryGradientOnceUnlessAnyMayBeMissing) {
  for (const Rule rule : {Rule::kEveryGradient, Rule::kAnyGradient}) {
    PassPolicy policy = policy_of(rule, 3);
    begin_reduced(policy);
    EXPECT_EQ(policy.arrived(1).meaning, Meaning::kFinal);
    EXPECT_THAT(policy.missing(), ElementsAre(0, 2));
    EXPECT_EQ(policy.allows_missing(), rule == Rule::kAnyGradient);
  }
}

TEST(PassPolicy, AllowsAGradientAgainWhileItCanStillBeReduced) {
  for (const Rule rule : {Rule::kEveryGradient, Rule::kAnyGradient}) {
    PassPolicy policy = policy_of(rule, 2);
    begin_reduced(policy);
    EXPECT_EQ(policy.arrived(0).meaning, Meaning::kFinal);
    EXPECT_EQ(policy.arrived(0).meaning, Meaning::kStays);
    EXPECT_EQ(policy.arrived(1).meaning, Meaning::kFinal);
    EXPECT_EQ(policy.arrived(0).meaning, Meaning::kUnexpected);
  }
}

TEST(PassPolicy, DoesNotTellOfAMissingGradientThatALocalPassHasBrought) {
  PassPolicy policy = policy_of(Rule::kEveryGradient, 3);
  pass_locally(policy, {1});
  EXPECT_TRUE(policy.has_local_gradient(1));
  EXPECT_THAT(policy.worth_telling({0, 1}), ElementsAre(0));
  policy.begin_reduction();
  policy.end_reduction(Part::kShadows);
  EXPECT_THAT(policy.worth_telling({0, 1}), ElementsAre(0, 1));
}

TEST(PassPolicy, ForgetsWhatALocalPassBroughtThatThrew) {
  PassPolicy policy = policy_of(Rule::kEveryGradient, 2);
  pass_locally(policy, {0});
  policy.begin(PassKind::kLocal);
  policy.arrived(1);
  EXPECT_EQ(policy.abandon(), PassKind::kLocal);
  pass_locally(policy, {});
  EXPECT_THAT(policy.worth_telling({0, 1}), ElementsAre(1));
}

TEST(PassPolicy, ForgetsAllLocalPassesWhenTheReducedOneFails) {
  PassPolicy policy = policy_of(Rule::kEveryGradient, 2);
  pass_locally(policy, {0});
  policy.drop_gradients();
  EXPECT_THAT(policy.worth_telling({0, 1}), ElementsAre(0, 1));
}

TEST(PassPolicy, ForgetsWhatWasUnusedIfAnyMayBeMissing) {
  PassPolicy policy = policy_of(Rule::kAnyGradient, 2);
  policy.set_unused({1, 0});
  EXPECT_TRUE(policy.unused(0));
  pass_reduced(policy, {1});
  EXPECT_FALSE(policy.unused(0));
  EXPECT_THAT(policy.never_here(), IsEmpty());
}

// With an unknown number of arrivals, a gradient waits for the end of the pass.
TEST(PassPolicy, LearnsAStaticGraphFromItsFirstPass) {
  PassPolicy policy = policy_of(Rule::kAsAtFirst, 3);
  EXPECT_TRUE(policy.allows_missing());
  begin_reduced(policy);
  for (int arrival = 0; arrival < 3; ++arrival)
    EXPECT_EQ(policy.arrived(1).meaning, Meaning::kStays);
  EXPECT_THAT(policy.partly_arrived(), ElementsAre(1));
  EXPECT_THAT(policy.missing(), ElementsAre(0, 2));
  EXPECT_THAT(policy.worth_telling({0, 2}), ElementsAre(0, 2));
  policy.set_unused({1, 0, 0});
  policy.end();
  policy.end_reduction(Part::kTrains);

  EXPECT_THAT(policy.never_here(), ElementsAre(0, 2));
  EXPECT_TRUE(policy.unused(0));
  EXPECT_FALSE(policy.allows_missing());
  policy.begin(PassKind::kReduced);
  EXPECT_EQ(policy.begin_reduction().bucket_count, 1u);  // of parameter 2
  EXPECT_EQ(policy.arrived(1).meaning, Meaning::kStays);
  EXPECT_EQ(policy.arrived(1).meaning, Meaning::kStays);
  const auto last = policy.arrived(1);
  EXPECT_EQ(last.meaning, Meaning::kFinal);
  EXPECT_EQ(last.bucket_count, 2u);
  EXPECT_THAT(policy.partly_arrived(), IsEmpty());
  EXPECT_EQ(policy.arrived(1).meaning, Meaning::kUnexpected);
  EXPECT_EQ(policy.arrived(0).meaning, Meaning::kUnexpected);
}

TEST(PassPolicy, LearnsLaterOnARankThatHadNoDataAtFirst) {
  PassPolicy policy = policy_of(Rule::kAsAtFirst, 2);
  policy.begin_reduction();
  policy.end_reduction(Part::kShadows);
  EXPECT_FALSE(policy.allows_missing());
  EXPECT_THAT(policy.worth_telling({0}), IsEmpty());
  pass_reduced(policy, {1});
  EXPECT_THAT(policy.never_here(), ElementsAre(0));
  EXPECT_THAT(policy.worth_telling({1}), ElementsAre(1));
}

}  // namespace
}  // namespace lockstep
