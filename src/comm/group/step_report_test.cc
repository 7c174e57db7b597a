#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/training_loop.h"
#include "src/base/testing/test_directory.h"
#include "src/comm/group/group_core.h"
#include "src/net/step_memory.h"

namespace lockstep {
namespace {

// A group of one rank whose launcher has made a file of steps, unless the name
// of that file is empty.
std::shared_ptr<ProcessGroup> group_with(const std::string& steps_file) {
  Settings settings;
  settings.steps_file = steps_file;
  settings.steps_slot = 0;
  return make_group("shm", {.rank = 0, .size = 1},
                    std::make_shared<World>(open_store("memory:"), settings));
}

class Steps {
 public:
  std::string path() const { return (folder_ / "steps").string(); }
  RankSteps read() const { return read_rank_steps(file_, 0).value(); }

 private:
  TestDirectory folder_;
  FileDescriptor file_ = create_step_memory(path(), 1);
};

TEST(StepReport, GivesTheStepsToReaders) {
  const Steps steps;
  const auto group = group_with(steps.path());
  StepReport report(group);
  EXPECT_EQ(steps.read().phase, StepPhase::kUnknown);
  for (int step = 0; step < 3; ++step) {
    report.data_ready();
    EXPECT_EQ(steps.read().phase, StepPhase::kCompute);
    report.step_done(7);
  }
  EXPECT_EQ(steps.read().phase, StepPhase::kData);
  EXPECT_EQ(steps.read().steps, 3u);
  EXPECT_EQ(steps.read().window.value().samples, 14u);
}

TEST(StepReport, ComputesWhereTheProgramTellsNothingOfData) {
  const Steps steps;
  StepReport report(group_with(steps.path()));
  report.step_done(1);
  EXPECT_EQ(steps.read().phase, StepPhase::kCompute);
}

TEST(StepReport, ReplacesTheStepsThatLockstepCounts) {
  const Steps steps;
  const auto group = group_with(steps.path());
  group->core().count_reduced_pass();
  group->core().count_reduced_pass();
  EXPECT_EQ(steps.read().steps, 2u);
  StepReport report(group);
  group->core().count_reduced_pass();
  EXPECT_EQ(steps.read().steps, 2u);
  report.step_done(1);
  EXPECT_EQ(steps.read().steps, 3u);
}

TEST(StepReport, LeavesTheStepsToLockstepWhenItIsGone) {
  const Steps steps;
  const auto group = group_with(steps.path());
  {
    StepReport report(group);
    report.data_ready();
    report.step_done(1);
  }
  group->core().count_reduced_pass();
  EXPECT_EQ(steps.read().steps, 2u);
  EXPECT_EQ(steps.read().phase, StepPhase::kUnknown);
}

TEST(StepReport, CountsForTheProgramUntilTheLastOfSeveralIsGone) {
  const Steps steps;
  const auto group = group_with(steps.path());
  StepReport outer(group);
  { StepReport inner(group); }
  group->core().count_reduced_pass();
  EXPECT_EQ(steps.read().steps, 0u);
}

TEST(StepReport, DoesNothingWithoutALauncher) {
  for (const char* path : {"", "/no/such/file"}) {
    const auto group = group_with(path);
    StepReport report(group);
    report.data_ready();
    report.step_done(1);
    group->core().count_reduced_pass();
  }
}

TEST(StepReport, RefusesWhatCannotBe) {
  EXPECT_THROW(StepReport(nullptr), InvalidArgument);
  StepReport report(group_with(""));
  EXPECT_THROW(report.step_done(-1), InvalidArgument);
}

}  // namespace
}  // namespace lockstep
