#include "src/launch/output/progress_display.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "src/base/testing/lookup_in.h"
#include "src/base/testing/progress_records.h"
#include "src/launch/output/progress_text.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using testing::ElementsAre;
using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;

using TimePoint = ProgressDisplay::TimePoint;

const EndRecord kEnd{
    .model_path = "/tmp/convnet.safetensors",
    .test_accuracy = 0.912,
    .seconds = 33.14,
    .notes = {"half of it was sent"},
    .hints = {"lockstep train --model mlp", "lockstep --help"}};

constexpr TerminalStyle kPipe{
    .moving = false, .colour = false, .utf8 = true, .columns = 80};
constexpr TerminalStyle kPlainTerminal{
    .moving = true, .colour = false, .utf8 = true, .columns = 90};
constexpr TerminalStyle kColourTerminal{
    .moving = true, .colour = true, .utf8 = true, .columns = 90};
constexpr TerminalStyle kAsciiTerminal{
    .moving = true, .colour = false, .utf8 = false, .columns = 90};

TerminalStyle narrow(int columns) {
  TerminalStyle style = kAsciiTerminal;
  style.columns = columns;
  return style;
}

TEST(ProgressText, StartSaysWhatRunsWhere) {
  EXPECT_THAT(
      start_lines(kStart, kPipe),
      ElementsAre("Lockstep 0.1.0 · 2 ranks on this host · shm · LibTorch "
                  "2.13.0",
                  "Fashion-MNIST 60,000 + 10,000 images · convnet, 421,642 "
                  "parameters · global batch 128, 64 per rank"));
  StartRecord alone = kStart;
  alone.ranks = 1;
  alone.libtorch_version = "";
  EXPECT_EQ(start_lines(alone, kAsciiTerminal)[0],
            "Lockstep 0.1.0 | 1 rank on this host | shm");
  alone.hosts = 2;
  EXPECT_EQ(start_lines(alone, kAsciiTerminal)[0],
            "Lockstep 0.1.0 | 1 rank on 2 hosts | shm");
}

TEST(ProgressText, BarFillsAndShowsItsHead) {
  EXPECT_EQ(bar_line(kStep, kPlainTerminal),
            "epoch 3/5  ━━━━━━━━━━━━━━━━━━━━╸─────────  312/469  loss 0.287  "
            "9,870 images/s  0:01 left");
  EXPECT_EQ(bar_line(kStep, kAsciiTerminal),
            "epoch 3/5  ====================>---------  312/469  loss 0.287  "
            "9,870 images/s  0:01 left");
}

TEST(ProgressText, BarInColourIsOneLineInTwoShades) {
  EXPECT_EQ(bar_line(kStep, kColourTerminal),
            "epoch 3/5  \033[36m━━━━━━━━━━━━━━━━━━━━╸\033[90m━━━━━━━━━\033[0m  "
            "312/469  loss 0.287  9,870 images/s  0:01 left");
}

TEST(ProgressText, BarIsFullAtTheEndAndEmptyAtTheStart) {
  StepRecord step = kStep;
  step.step = 469;
  EXPECT_THAT(bar_line(step, kAsciiTerminal),
              HasSubstr(" " + std::string(30, '=') + " "));
  step.step = 0;
  EXPECT_THAT(bar_line(step, kAsciiTerminal),
              HasSubstr(" >" + std::string(29, '-') + "    0/469"));
  step.steps = 0;
  EXPECT_THAT(bar_line(step, kAsciiTerminal), HasSubstr("0/0"));
}

TEST(ProgressText, BarNeverReachesTheLastColumn) {
  for (int columns = 0; columns <= 200; ++columns)
    ASSERT_LT(bar_line(kStep, narrow(columns)).size(),
              static_cast<std::size_t>(std::max(columns, 1)));
  EXPECT_EQ(bar_line(kStep, narrow(80)),
            "epoch 3/5  =============>------  312/469  loss 0.287  "
            "9,870 images/s  0:01 left");
  EXPECT_EQ(bar_line(kStep, narrow(60)),
            "epoch 3/5  312/469  loss 0.287  9,870 images/s  0:01 left");
  EXPECT_EQ(bar_line(kStep, narrow(20)), "epoch 3/5  312/469");
}

TEST(ProgressText, ShowsALossThatHasDiverged) {
  StepRecord step = kStep;
  step.loss = std::nan("");
  step.images_per_second = HUGE_VAL;
  step.seconds_left = std::nan("");
  EXPECT_EQ(step_line(step),
            "epoch 3/5  312/469  loss nan  - images/s  -:-- left");
}

TEST(ProgressText, EpochsFormATable) {
  EXPECT_EQ(epoch_table_header(),
            "epoch   train loss   train acc   test acc   images/s     time");
  EXPECT_EQ(epoch_table_row(kEpoch),
            "    1       0.5312      80.9 %     86.7 %      9,612    6.2 s");
  EpochRecord epoch = kEpoch;
  epoch.test_accuracy.reset();
  epoch.seconds = 125;
  EXPECT_EQ(epoch_table_row(epoch),
            "    1       0.5312      80.9 %          -      9,612     2:05");
  epoch.images_per_second.reset();
  epoch.seconds.reset();
  EXPECT_EQ(epoch_table_row(epoch),
            "    1       0.5312      80.9 %          -          -        -");
}

TEST(ProgressText, EndSaysWhereTheModelIsAndWhatToTry) {
  EXPECT_THAT(end_lines(kEnd, kPipe),
              ElementsAre("trained in 33.1 s · test accuracy 91.2 %",
                          "model   /tmp/convnet.safetensors",
                          "note    half of it was sent",
                          "next    lockstep train --model mlp",
                          "        lockstep --help"));
}

TEST(ProgressText, TimesReadAsOnAClock) {
  EXPECT_EQ(clock_text(0.4), "0:00");
  EXPECT_EQ(clock_text(59.6), "1:00");
  EXPECT_EQ(clock_text(725), "12:05");
  EXPECT_EQ(clock_text(3723), "1:02:03");
  EXPECT_EQ(clock_text(-1), "-:--");
  EXPECT_EQ(clock_text(1e300), "-:--");
}

TEST(ProgressDisplay, DrawsTheBarBelowWhatItPrints) {
  ProgressDisplay display(kAsciiTerminal);
  const std::string bar = bar_line(kStep, kAsciiTerminal);
  display.add(kStep, TimePoint());
  EXPECT_EQ(display.draw(TimePoint()), bar);
  display.print("[rank 1] hello\n");
  EXPECT_EQ(display.draw(TimePoint()), "\r\033[K[rank 1] hello\n" + bar);
  EXPECT_EQ(display.draw(TimePoint()), "");
}

TEST(ProgressDisplay, RedrawsTheBarOnlySoOften) {
  ProgressDisplay display(kAsciiTerminal);
  display.add(kStep, TimePoint());
  EXPECT_NE(display.draw(TimePoint()), "");
  StepRecord next = kStep;
  next.step = 313;
  display.add(next, TimePoint(10ms));
  EXPECT_EQ(display.draw(TimePoint(10ms)), "");
  EXPECT_EQ(display.due(), Deadline(TimePoint(50ms)));
  EXPECT_EQ(display.draw(TimePoint(60ms)),
            "\r\033[K" + bar_line(next, kAsciiTerminal));
  EXPECT_TRUE(display.due().is_never());
}

TEST(ProgressDisplay, FollowsTheTerminalsWidth) {
  ProgressDisplay display(kAsciiTerminal);
  display.add(kStep, TimePoint());
  display.draw(TimePoint());
  display.resize(60);
  EXPECT_EQ(display.draw(TimePoint(1s)),
            "\r\033[K" + bar_line(kStep, narrow(60)));
}

TEST(ProgressDisplay, PrintsTheTablesHeaderOnce) {
  ProgressDisplay display(kAsciiTerminal);
  display.add(kStep, TimePoint());
  display.add(kEpoch, TimePoint());
  const std::string row = epoch_table_row(kEpoch) + "\n";
  EXPECT_EQ(display.draw(TimePoint()), epoch_table_header() + "\n" + row +
                                           bar_line(kStep, kAsciiTerminal));
  display.add(kEpoch, TimePoint());
  EXPECT_EQ(display.draw(TimePoint()),
            "\r\033[K" + row + bar_line(kStep, kAsciiTerminal));
}

TEST(ProgressDisplay, EndTakesTheBarAway) {
  ProgressDisplay display(kAsciiTerminal);
  display.add(kStep, TimePoint());
  display.draw(TimePoint());
  display.add(kEnd, TimePoint());
  const std::string bytes = display.draw(TimePoint());
  EXPECT_THAT(bytes, testing::StartsWith("\r\033[K\ntrained in"));
  EXPECT_THAT(bytes, EndsWith("lockstep --help\n"));
  EXPECT_EQ(display.settle(), "");
}

TEST(ProgressDisplay, SettlingTakesTheBarAwayToo) {
  ProgressDisplay display(kAsciiTerminal);
  display.add(kStep, TimePoint());
  display.draw(TimePoint());
  EXPECT_EQ(display.settle(), "\r\033[K");
  EXPECT_EQ(display.draw(TimePoint(1s)), "");
}

TEST(ProgressDisplay, PrintsAPlainLineEveryFewSecondsWherePiped) {
  ProgressDisplay display(kPipe);
  const std::string line = step_line(kStep) + "\n";
  std::string all;
  for (int tenth = 0; tenth <= 65; ++tenth) {
    display.add(kStep, TimePoint(tenth * 100ms));
    all += display.draw(TimePoint(tenth * 100ms));
  }
  EXPECT_EQ(all, line + line + line);
}

TEST(ProgressDisplay, WritesNoEscapeCodesWherePiped) {
  ProgressDisplay display(kPipe);
  display.add(kStart, TimePoint());
  display.add(kStep, TimePoint());
  display.add(kEpoch, TimePoint());
  std::string all = display.draw(TimePoint());
  display.add(kEnd, TimePoint());
  all += display.settle();
  EXPECT_THAT(all, Not(HasSubstr("\033")));
  EXPECT_THAT(all, Not(HasSubstr("\r")));
  EXPECT_THAT(all, HasSubstr("Lockstep 0.1.0"));
  EXPECT_THAT(all, HasSubstr("trained in"));
}

TEST(TerminalStyle, TakesTheCharactersFromTheLocale) {
  const auto utf8 = [](const std::map<std::string, std::string>& variables) {
    return terminal_style(-1, lookup_in(variables)).utf8;
  };
  EXPECT_FALSE(utf8({}));
  EXPECT_FALSE(utf8({{"LANG", "C"}}));
  EXPECT_TRUE(utf8({{"LANG", "de_DE.UTF-8"}}));
  EXPECT_TRUE(utf8({{"LANG", "C"}, {"LC_CTYPE", "C.utf8"}}));
  EXPECT_FALSE(utf8({{"LC_ALL", "POSIX"}, {"LANG", "C.UTF-8"}}));
  EXPECT_TRUE(utf8({{"LC_ALL", ""}, {"LANG", "C.UTF-8"}}));
}

}  // namespace
}  // namespace lockstep
