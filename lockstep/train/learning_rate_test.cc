#include "lockstep/train/learning_rate.h"

#include <gtest/gtest.h>

#include <string>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

TEST(LearningRate, OfOneCycleRisesToTheFullRateAndFallsToNearlyNothing) {
  const auto factor = [](std::int64_t step) {
    return learning_rate_factor(Schedule::kOneCycle, step, 100);
  };
  EXPECT_DOUBLE_EQ(factor(0), 0.05);
  EXPECT_DOUBLE_EQ(factor(19), 1);
  EXPECT_DOUBLE_EQ(factor(20), 1);
  EXPECT_NEAR(factor(60), 0.5, 1e-12);
  EXPECT_GT(factor(99), 0);
  EXPECT_LT(factor(99), 0.001);
  for (int step = 21; step < 100; ++step)
    EXPECT_LT(factor(step), factor(step - 1)) << step;
}

TEST(LearningRate, IsNeverZeroOrAboveTheFullRateHoweverShortTheRun) {
  for (int steps = 1; steps < 12; ++steps)
    for (int step = 0; step < steps; ++step) {
      const double factor =
          learning_rate_factor(Schedule::kOneCycle, step, steps);
      EXPECT_GT(factor, 0) << step << " of " << steps;
      EXPECT_LE(factor, 1) << step << " of " << steps;
    }
}

TEST(LearningRate, StaysWhereItIsWhenConstant) {
  EXPECT_EQ(learning_rate_factor(Schedule::kConstant, 0, 10), 1);
  EXPECT_EQ(learning_rate_factor(Schedule::kConstant, 9, 10), 1);
}

TEST(LearningRate, KnowsItsSchedulesByName) {
  for (const auto name : known_schedules())
    EXPECT_NO_THROW(parse_schedule(name));
  try {
    parse_schedule("constante");
    FAIL() << "it is known";
  } catch (const InvalidArgument& error) {
    EXPECT_NE(std::string(error.what()).find("did you mean \"constant\""),
              std::string::npos);
  }
}

}  // namespace
}  // namespace lockstep
