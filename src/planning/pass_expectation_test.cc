#include "src/planning/pass_expectation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep {
namespace {

using Rule = PassExpectation::Rule;
using Status = GradientTracker::Status;
using testing::Each;
using testing::ElementsAre;
using testing::IsEmpty;

TEST(PassExpectation, IsThatEveryGradientComesOnceUnlessAnyMayStayAway) {
  PassExpectation every(Rule::kEveryGradient, 3);
  EXPECT_THAT(every.counts(), Each(1u));
  EXPECT_FALSE(every.allows_missing());
  EXPECT_TRUE(PassExpectation(Rule::kAnyGradient, 3).allows_missing());
}

TEST(PassExpectation, AllowsAGradientAgainWhileItCanStillBeReduced) {
  for (const Rule rule : {Rule::kEveryGradient, Rule::kAnyGradient}) {
    const PassExpectation expectation(rule, 1);
    EXPECT_TRUE(expectation.allows(0, Status::kFinal));
    EXPECT_TRUE(expectation.allows(0, Status::kRepeated));
    EXPECT_FALSE(expectation.allows(0, Status::kRepeatedTooLate));
  }
}

TEST(PassExpectation, TellsNobodyOfWhatHasAGradientFromALocalPass) {
  PassExpectation expectation(Rule::kEveryGradient, 3);
  expectation.arrived_in_local_pass(1);
  expectation.end_local_pass();
  EXPECT_THAT(expectation.worth_telling({0, 1}), ElementsAre(0));
  expectation.end_pass(nullptr);
  EXPECT_THAT(expectation.worth_telling({0, 1}), ElementsAre(0, 1));
}

TEST(PassExpectation, ForgetsWhatALocalPassBroughtThatThrew) {
  PassExpectation expectation(Rule::kEveryGradient, 2);
  expectation.arrived_in_local_pass(0);
  expectation.end_local_pass();
  expectation.arrived_in_local_pass(1);
  expectation.drop_local_pass();
  expectation.end_local_pass();
  EXPECT_THAT(expectation.worth_telling({0, 1}), ElementsAre(1));
}

TEST(PassExpectation, ForgetsAllLocalPassesWhenTheReducedOneFails) {
  PassExpectation expectation(Rule::kEveryGradient, 2);
  expectation.arrived_in_local_pass(0);
  expectation.end_local_pass();
  expectation.drop_gradients();
  EXPECT_THAT(expectation.worth_telling({0, 1}), ElementsAre(0, 1));
}

TEST(PassExpectation, ForgetsWhatWasUnusedWhenAnyMayStayAway) {
  PassExpectation expectation(Rule::kAnyGradient, 2);
  expectation.set_unused({1, 0});
  EXPECT_TRUE(expectation.unused(0));
  const GradientTracker::Counts counts{0, 1};
  expectation.end_pass(&counts);
  EXPECT_FALSE(expectation.unused(0));
  EXPECT_THAT(expectation.never_here(), IsEmpty());
}

TEST(PassExpectation, IsTheFirstPassWhereThatIsLearnt) {
  PassExpectation expectation(Rule::kAsAtFirst, 3);
  EXPECT_THAT(expectation.counts(), Each(GradientTracker::kUnknown));
  EXPECT_TRUE(expectation.allows_missing());
  EXPECT_THAT(expectation.worth_telling({0, 2}), ElementsAre(0, 2));
  expectation.set_unused({1, 0, 0});
  const GradientTracker::Counts counts{0, 3, 0};
  expectation.end_pass(&counts);

  EXPECT_EQ(expectation.counts(), counts);
  EXPECT_THAT(expectation.never_here(), ElementsAre(0, 2));
  EXPECT_TRUE(expectation.unused(0));
  EXPECT_FALSE(expectation.allows_missing());
  EXPECT_FALSE(expectation.allows(0, Status::kFinal));
  EXPECT_TRUE(expectation.allows(1, Status::kPartial));
  EXPECT_FALSE(expectation.allows(1, Status::kRepeated));
}

TEST(PassExpectation, IsLearntLaterByARankThatHadNoDataAtFirst) {
  PassExpectation expectation(Rule::kAsAtFirst, 2);
  expectation.end_pass(nullptr);
  EXPECT_THAT(expectation.counts(), Each(GradientTracker::kUnknown));
  EXPECT_FALSE(expectation.allows_missing());
  EXPECT_THAT(expectation.worth_telling({0}), IsEmpty());
  const GradientTracker::Counts counts{0, 1};
  expectation.end_pass(&counts);
  EXPECT_EQ(expectation.counts(), counts);
  EXPECT_THAT(expectation.worth_telling({1}), ElementsAre(1));
}

}  // namespace
}  // namespace lockstep
