#include "apps/trainer/loop/learning_rate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <cmath>
#include <numbers>

#include "lockstep/torch/optimizers.h"
#include "src/base/testing/error_text.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

constexpr std::int64_t kStepsPerEpoch = 10;

// The rate of a step of a run of ten epochs whose full rate is 0.5.
double rate(const ScheduleOptions& options, std::int64_t step) {
  return LearningRate(options, 0.5, 10).at(step, kStepsPerEpoch);
}

TEST(LearningRate, OfOneCycleRisesToTheFullRateAndFallsToNearlyNothing) {
  const auto at = [](std::int64_t step) { return rate({}, step); };
  EXPECT_DOUBLE_EQ(at(0), 0.025);
  EXPECT_DOUBLE_EQ(at(19), 0.5);
  EXPECT_DOUBLE_EQ(at(20), 0.5);
  EXPECT_NEAR(at(60), 0.25, 1e-12);
  EXPECT_GT(at(99), 0);
  EXPECT_LT(at(99), 0.001);
  for (int step = 21; step < 100; ++step)
    EXPECT_LT(at(step), at(step - 1)) << step;
}

TEST(LearningRate, IsNeverZeroOrAboveTheFullRateHoweverShortTheRun) {
  for (const char* name : {"one-cycle", "cosine"})
    for (int steps = 1; steps < 12; ++steps)
      for (int step = 0; step < steps; ++step) {
        const double one = LearningRate({.name = name}, 1, 1).at(step, steps);
        EXPECT_GT(one, 0) << name << ": " << step << " of " << steps;
        EXPECT_LE(one, 1) << name << ": " << step << " of " << steps;
      }
}

TEST(LearningRate, StaysWhereItIsWhenConstant) {
  EXPECT_EQ(rate({.name = "constant"}, 0), 0.5);
  EXPECT_EQ(rate({.name = "constant"}, 99), 0.5);
}

TEST(LearningRate, DropsInStepsThatCountFromTheEndOfTheWarmUp) {
  ScheduleOptions options{.name = "step", .step_size = 3, .gamma = 0.2};
  EXPECT_DOUBLE_EQ(rate(options, 29), 0.5);
  EXPECT_DOUBLE_EQ(rate(options, 30), 0.1);
  EXPECT_DOUBLE_EQ(rate(options, 60), 0.02);
  options.warmup_epochs = 2;
  EXPECT_DOUBLE_EQ(rate(options, 49), 0.5);
  EXPECT_DOUBLE_EQ(rate(options, 50), 0.1);
}

TEST(LearningRate, FallsAlongAHalfCosineToTheLowest) {
  const ScheduleOptions options{.name = "cosine", .min_rate = 0.1};
  EXPECT_DOUBLE_EQ(rate(options, 0), 0.5);
  EXPECT_NEAR(rate(options, 25),
              0.1 + 0.2 * (1 + std::cos(std::numbers::pi / 4)), 1e-12);
  EXPECT_NEAR(rate(options, 50), 0.3, 1e-12);
  EXPECT_NEAR(rate(options, 99), 0.1, 1e-3);
  EXPECT_GT(rate(options, 99), 0.1);
}

TEST(LearningRate, WarmsUpOverAFractionOfAnEpochBeforeAnyOfThem) {
  for (const char* name : {"constant", "step", "cosine"}) {
    const ScheduleOptions options{
        .name = name, .warmup_epochs = 0.4, .warmup_decay = 0.2};
    EXPECT_DOUBLE_EQ(rate(options, 0), 0.1) << name;
    EXPECT_DOUBLE_EQ(rate(options, 1), 0.2) << name;
    EXPECT_DOUBLE_EQ(rate(options, 3), 0.4) << name;
    EXPECT_DOUBLE_EQ(rate(options, 4), 0.5) << name;
  }
}

TEST(LearningRate, KnowsItsSchedulesByName) {
  for (const auto name : names_in(kSchedules))
    EXPECT_NO_THROW(parse_schedule(name));
  EXPECT_THAT(error_text([] { parse_schedule("constante"); }),
              HasSubstr("did you mean \"constant\""));
}

TEST(LearningRate, RefusesNumbersThatMakeNoSchedule) {
  const auto refusal = [](const ScheduleOptions& options) {
    return error_text([&] { rate(options, 0); });
  };
  EXPECT_THAT(refusal({.warmup_epochs = 1}), HasSubstr("of its own"));
  EXPECT_THAT(refusal({.name = "constant", .warmup_epochs = 10}),
              HasSubstr("at least 0 and shorter than the run"));
  EXPECT_THAT(refusal({.name = "constant", .warmup_epochs = -1}),
              HasSubstr("at least 0 and shorter than the run"));
  EXPECT_THAT(refusal({.name = "cosine", .warmup_decay = 1.5}),
              HasSubstr("from 0 to 1 times"));
  EXPECT_THAT(refusal({.name = "cosine", .min_rate = 0.6}),
              HasSubstr("the lowest rate is 0.6"));
  EXPECT_THAT(refusal({.name = "step", .step_size = 0}),
              HasSubstr("at least 1"));
  EXPECT_THAT(refusal({.name = "step", .gamma = 0}), HasSubstr("above 0"));
}

TEST(LearningRate, IsThatOfCosineAnnealingLR) {
  for (const int warmup : {0, 1, 4}) {
    torch::optim::SGD optimizer({torch::zeros({2})}, 0.4);
    CosineAnnealingLR schedule(optimizer, {.t_max = 10 - warmup,
                                           .eta_min = 0.1,
                                           .warmup = warmup,
                                           .start_factor = 0.2});
    const LearningRate trainers({.name = "cosine",
                                 .min_rate = 0.1,
                                 .warmup_epochs = static_cast<double>(warmup),
                                 .warmup_decay = 0.2},
                                0.4, 10);
    for (int epoch = 0; epoch <= 10; ++epoch) {
      EXPECT_NEAR(optimizer.param_groups()[0].options().get_lr(),
                  trainers.at(epoch, 1), 1e-12)
          << "epoch " << epoch << " with a warm-up of " << warmup;
      EXPECT_EQ(schedule.last_epoch(), epoch);
      schedule.step();
    }
  }
}

}  // namespace
}  // namespace lockstep
