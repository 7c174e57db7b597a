#include "apps/train/schedule_flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "apps/testing/parse_train_flags.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(ScheduleFlags, AreThoseOfTorchvisionWithItsDefaults) {
  const TrainOptions usual =
      parse_train({"--schedule", "step", "--epochs", "90"});
  EXPECT_EQ(usual.schedule.step_size, 30);
  EXPECT_EQ(usual.schedule.gamma, 0.1);
  EXPECT_EQ(usual.schedule.min_rate, 0);
  EXPECT_EQ(usual.schedule.warmup_epochs, 0);
  EXPECT_EQ(usual.schedule.warmup_decay, 0.01);
  const TrainOptions step = parse_train(
      {"--schedule=step", "--lr-step-size", "2", "--lr-gamma", "0.5",
       "--lr-warmup-epochs", "0.5", "--lr-warmup-decay", "0"});
  EXPECT_EQ(step.schedule.step_size, 2);
  EXPECT_EQ(step.schedule.gamma, 0.5);
  EXPECT_EQ(step.schedule.warmup_epochs, 0.5);
  EXPECT_EQ(step.schedule.warmup_decay, 0);
  EXPECT_EQ(parse_train({"--schedule", "cosine", "--lr-min", "1e-3"})
                .schedule.min_rate,
            1e-3);
}

TEST(ScheduleFlags, RefuseWhatAnotherScheduleWouldIgnore) {
  EXPECT_EQ(train_error({"--lr-gamma", "0.5"}),
            "--lr-gamma is for --schedule step; the schedule is one-cycle");
  EXPECT_THAT(train_error({"--schedule", "cosine", "--lr-step-size", "2"}),
              HasSubstr("--lr-step-size is for --schedule step"));
  EXPECT_THAT(train_error({"--schedule", "constant", "--lr-min", "0"}),
              HasSubstr("--lr-min is for --schedule cosine"));
  EXPECT_THAT(train_error({"--lr-warmup-epochs", "1"}),
              HasSubstr("one-cycle warms up by itself"));
  EXPECT_THAT(
      train_error({"--schedule", "constant", "--lr-warmup-decay", "0.1"}),
      HasSubstr("--lr-warmup-decay needs --lr-warmup-epochs"));
}

TEST(ScheduleFlags, RefuseWhatNeverHappensInTheRun) {
  EXPECT_EQ(train_error({"--schedule", "step"}),
            "--schedule step drops the rate every 30 epochs, which a run of 5 "
            "does not reach: give --lr-step-size");
  EXPECT_EQ(train_error({"--schedule", "cosine", "--lr-warmup-epochs", "5"}),
            "--lr-warmup-epochs 5 leaves nothing of the 5 epochs for the "
            "schedule: use less, or more --epochs");
  EXPECT_EQ(train_error({"--schedule", "cosine", "--lr-min", "0.1"}),
            "--lr-min 0.1 is above --lr 0.05, from which the rate falls");
}

TEST(ScheduleFlags, RefuseWhatIsNoSensibleNumber) {
  for (const char* flag :
       {"--lr-gamma", "--lr-min", "--lr-warmup-epochs", "--lr-warmup-decay"})
    for (const char* text : {"-1", "two", "nan", "inf"})
      EXPECT_THAT(train_error({flag, text}),
                  AllOf(HasSubstr(flag), HasSubstr("is not a number")))
          << flag << " " << text;
  EXPECT_THAT(train_error({"--lr-gamma", "0"}), HasSubstr("--lr-gamma"));
  EXPECT_THAT(train_error({"--lr-step-size", "0"}),
              HasSubstr("not a whole number from 1"));
}

}  // namespace
}  // namespace lockstep
