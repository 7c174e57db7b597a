#include "src/tools/train/schedule_flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "src/base/testing/error_text.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TrainOptions parse(const std::vector<const char*>& arguments) {
  return parse_train_options(arguments, {.cores = 2});
}

std::string error_of(const std::vector<const char*>& arguments) {
  return error_text([&] { parse(arguments); });
}

TEST(ScheduleFlags, AreThoseOfTorchvisionWithItsDefaults) {
  const TrainOptions usual = parse({"--schedule", "step", "--epochs", "90"});
  EXPECT_EQ(usual.schedule.step_size, 30);
  EXPECT_EQ(usual.schedule.gamma, 0.1);
  EXPECT_EQ(usual.schedule.min_rate, 0);
  EXPECT_EQ(usual.schedule.warmup_epochs, 0);
  EXPECT_EQ(usual.schedule.warmup_decay, 0.01);
  const TrainOptions step =
      parse({"--schedule=step", "--lr-step-size", "2", "--lr-gamma", "0.5",
             "--lr-warmup-epochs", "0.5", "--lr-warmup-decay", "0"});
  EXPECT_EQ(step.schedule.step_size, 2);
  EXPECT_EQ(step.schedule.gamma, 0.5);
  EXPECT_EQ(step.schedule.warmup_epochs, 0.5);
  EXPECT_EQ(step.schedule.warmup_decay, 0);
  EXPECT_EQ(
      parse({"--schedule", "cosine", "--lr-min", "1e-3"}).schedule.min_rate,
      1e-3);
}

TEST(ScheduleFlags, RefuseWhatAnotherScheduleWouldIgnore) {
  EXPECT_EQ(error_of({"--lr-gamma", "0.5"}),
            "--lr-gamma is for --schedule step; the schedule is one-cycle");
  EXPECT_THAT(error_of({"--schedule", "cosine", "--lr-step-size", "2"}),
              HasSubstr("--lr-step-size is for --schedule step"));
  EXPECT_THAT(error_of({"--schedule", "constant", "--lr-min", "0"}),
              HasSubstr("--lr-min is for --schedule cosine"));
  EXPECT_THAT(error_of({"--lr-warmup-epochs", "1"}),
              HasSubstr("one-cycle warms up by itself"));
  EXPECT_THAT(error_of({"--schedule", "constant", "--lr-warmup-decay", "0.1"}),
              HasSubstr("--lr-warmup-decay needs --lr-warmup-epochs"));
}

TEST(ScheduleFlags, RefuseWhatNeverHappensInTheRun) {
  EXPECT_EQ(error_of({"--schedule", "step"}),
            "--schedule step drops the rate every 30 epochs, which a run of 5 "
            "does not reach: give --lr-step-size");
  EXPECT_EQ(error_of({"--schedule", "cosine", "--lr-warmup-epochs", "5"}),
            "--lr-warmup-epochs 5 leaves nothing of the 5 epochs for the "
            "schedule: use less, or more --epochs");
  EXPECT_EQ(error_of({"--schedule", "cosine", "--lr-min", "0.1"}),
            "--lr-min 0.1 is above --lr 0.05, from which the rate falls");
}

TEST(ScheduleFlags, RefuseWhatIsNoSensibleNumber) {
  for (const char* flag :
       {"--lr-gamma", "--lr-min", "--lr-warmup-epochs", "--lr-warmup-decay"})
    for (const char* text : {"-1", "two", "nan", "inf"})
      EXPECT_THAT(error_of({flag, text}),
                  AllOf(HasSubstr(flag), HasSubstr("is not a number")))
          << flag << " " << text;
  EXPECT_THAT(error_of({"--lr-gamma", "0"}), HasSubstr("--lr-gamma"));
  EXPECT_THAT(error_of({"--lr-step-size", "0"}),
              HasSubstr("not a whole number from 1"));
}

}  // namespace
}  // namespace lockstep
