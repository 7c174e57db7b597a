#include "apps/status/job_status.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <vector>

#include "src/base/testing/error_text.h"
#include "src/base/testing/lookup_in.h"
#include "src/base/testing/test_directory.h"
#include "src/launch/record/job_list.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using Seconds = std::chrono::duration<double>;

// Steps of 100 ms, of which the rest is computing.
RankStatus rank_of(int rank, double data_ms, double waited_ms) {
  constexpr int kSteps = 10;
  RankSteps steps{.steps = 1000, .phase = StepPhase::kCompute};
  steps.last.emplace();
  steps.window = StepWindow{.steps = kSteps,
                            .samples = 320,
                            .time = Seconds(0.1 * kSteps),
                            .data = Seconds(data_ms / 1000 * kSteps),
                            .waited = Seconds(waited_ms / 1000 * kSteps),
                            .own_per_step = Seconds(0.1 - waited_ms / 1000),
                            .data_per_step = Seconds(data_ms / 1000)};
  return {.rank = rank,
          .pid = 5000 + rank,
          .steps = steps,
          .seconds_since_step = 0.05};
}

RankStatus stopped(RankStatus rank, double seconds, bool waits) {
  rank.seconds_since_step = seconds;
  rank.steps.waits = waits;
  return rank;
}

TEST(Stragglers, AreNoneAmongRanksThatTakeEquallyLong) {
  EXPECT_THAT(stragglers_of({}), IsEmpty());
  EXPECT_THAT(stragglers_of(std::vector{rank_of(0, 0, 10)}), IsEmpty());
  EXPECT_THAT(stragglers_of(std::vector{rank_of(0, 5, 30), rank_of(1, 5, 28),
                                        rank_of(2, 6, 31)}),
              IsEmpty());
}

TEST(Stragglers, AreThoseThatWaitLeastBecauseTheyTakeLongest) {
  const auto found = stragglers_of(
      std::vector{rank_of(0, 0, 50), rank_of(1, 0, 10), rank_of(2, 0, 52)});
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].kind, Straggler::Kind::kSlow);
  EXPECT_EQ(found[0].rank, 1);
  EXPECT_EQ(found[0].part, StepPart::kCompute);
  EXPECT_NEAR(found[0].seconds, 0.090, 1e-9);
  EXPECT_NEAR(found[0].others, 0.048, 1e-9);
}

TEST(Stragglers, AreSlowInDataWhereMostOfTheDifferenceIs) {
  const auto found =
      stragglers_of(std::vector{rank_of(0, 2, 50), rank_of(1, 40, 10)});
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].rank, 1);
  EXPECT_EQ(found[0].part, StepPart::kData);
}

TEST(Stragglers, AreNoneAfterTheFirstSteps) {
  auto slow = rank_of(1, 0, 10);
  slow.steps.window->steps = 4;
  EXPECT_THAT(stragglers_of(std::vector{rank_of(0, 0, 50), slow}), IsEmpty());
}

TEST(Stragglers, HaveNoPartWhereTheProgramReportsNone) {
  auto slow = rank_of(1, 0, 10);
  slow.steps.phase = StepPhase::kUnknown;
  const auto found = stragglers_of(std::vector{rank_of(0, 0, 50), slow});
  ASSERT_EQ(found.size(), 1u);
  EXPECT_FALSE(found[0].part);
}

TEST(Stragglers, OfAStalledJobAreThoseThatDoNotWait) {
  const auto found =
      stragglers_of(std::vector{stopped(rank_of(0, 0, 50), 35, true),
                                stopped(rank_of(1, 0, 50), 34, false)});
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].kind, Straggler::Kind::kStalled);
  EXPECT_EQ(found[0].rank, 1);
  EXPECT_EQ(found[0].seconds, 34);
}

TEST(Stragglers, OfAJobWhoseRanksAllWaitAreNotBlamed) {
  const auto found =
      stragglers_of(std::vector{stopped(rank_of(0, 0, 50), 35, true),
                                stopped(rank_of(1, 0, 50), 35, true)});
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].kind, Straggler::Kind::kAllWait);
  EXPECT_EQ(found[0].part, StepPart::kWaiting);
}

// Such as a rank that was stopped while it waited.
TEST(Stragglers, OfAJobWhoseRanksAllWaitAreTheRankThatIsBehind) {
  JobStatus job{.launcher = 4711,
                .world_size = 3,
                .ranks = {stopped(rank_of(0, 0, 50), 35, true),
                          stopped(rank_of(1, 0, 50), 36, true),
                          stopped(rank_of(2, 0, 50), 35, true)}};
  --job.ranks[1].steps.steps;
  job.stragglers = stragglers_of(job.ranks);
  ASSERT_EQ(job.stragglers.size(), 1u);
  EXPECT_EQ(job.stragglers[0].kind, Straggler::Kind::kAllWait);
  EXPECT_EQ(job.stragglers[0].rank, 1);
  EXPECT_THAT(to_text(JobStatuses{.jobs = {job}}),
              HasSubstr("no step for 36 s; rank 1 has ended fewer steps than "
                        "the others and may be stopped; next:"));
  --job.ranks[2].steps.steps;
  EXPECT_EQ(stragglers_of(job.ranks)[0].rank, -1);
}

TEST(Stragglers, AreNoneWhereAllRanksComputeForLong) {
  EXPECT_THAT(stragglers_of(std::vector{stopped(rank_of(0, 0, 50), 35, false),
                                        stopped(rank_of(1, 0, 50), 35, false)}),
              IsEmpty());
}

JobStatuses one_job() {
  JobStatus job{.launcher = 4711,
                .user = 1000,
                .command = {"lockstep-train", "--epochs", "5"},
                .run_id = "none",
                .world_size = 2,
                .seconds = 723,
                .ranks = {rank_of(0, 2, 50), rank_of(1, 40, 10)}};
  job.stragglers = stragglers_of(job.ranks);
  return {.jobs = {job}};
}

TEST(JobStatus, IsATableOfRanksWithTheStragglerBelow) {
  EXPECT_EQ(to_text(one_job()),
            "job 4711  lockstep-train --epochs 5\n"
            "  user 1000, 2 of 2 ranks, for 12 min 3 s\n"
            "  rank      pid     steps  samples/s  last step   data  compute  "
            "waiting "
            " now\n"
            "     0     5000      1000      320.0      0.1 s    2 %     48 %   "
            "  50 % "
            " compute\n"
            "     1     5001      1000      320.0      0.1 s   40 %     50 %   "
            "  10 % "
            " compute\n"
            "  rank 1 is slow in data: 90 ms per step without waiting, the "
            "other ranks "
            "50 ms (1.8 times)\n");
}

TEST(JobStatus, HasDashesForARankThatReportsNothing) {
  JobStatuses jobs = one_job();
  jobs.jobs[0].ranks = {{.rank = 0, .pid = 5000}};
  jobs.jobs[0].stragglers = {};
  EXPECT_THAT(
      to_text(jobs),
      HasSubstr("     0     5000         -          -          -      - "
                "       -        -  \n"));
  const auto rank = to_json_list(jobs.jobs)[0]["ranks"][0];
  EXPECT_EQ(rank["steps"], 0);
  EXPECT_TRUE(rank["samples_per_second"].is_null());
  EXPECT_TRUE(rank["step_seconds"].is_null());
}

TEST(JobStatus, ShowsNoBytesThatChangeTheTerminal) {
  JobStatuses jobs = one_job();
  jobs.jobs[0].command = {"a\x1b[2Jb\n"};
  jobs.problems = {"p\x1b[2J"};
  EXPECT_THAT(to_text(jobs),
              AllOf(Not(HasSubstr("\x1b[2J")), HasSubstr("job")));
}

TEST(JobStatus, SaysTheSameToPrograms) {
  const auto job = to_json_list(one_job().jobs)[0];
  EXPECT_EQ(job["launcher"], 4711);
  EXPECT_EQ(job["command"][1], "--epochs");
  const auto& rank = job["ranks"][1];
  EXPECT_EQ(rank["rank"], 1);
  EXPECT_NEAR(rank["step_seconds"]["data"].get<double>(), 0.040, 1e-9);
  EXPECT_NEAR(rank["samples_per_second"].get<double>(), 320, 1e-6);
  EXPECT_EQ(rank["activity"], "compute");
  const auto& straggler = job["stragglers"][0];
  EXPECT_EQ(straggler["rank"], 1);
  EXPECT_EQ(straggler["phase"], "data");
}

TEST(JobStatus, ReadsTheStepsOfAListedJob) {
  const TestDirectory made;
  const auto folder = made / "jobs";
  JobListing listing(folder, 2);
  listing.publish({.command = {"program"},
                   .world_size = 2,
                   .pids = {10, 11},
                   .ranks = {0, 1}});
  StepWriter writer(listing.steps_file(), 1);
  for (int step = 0; step < 3; ++step)
    writer.step_done(8, std::chrono::nanoseconds(0));
  const JobStatuses seen =
      look_at_jobs(lookup_in({{"LOCKSTEP_JOBS_DIR", folder.string()}}));
  ASSERT_EQ(seen.jobs.size(), 1u);
  ASSERT_EQ(seen.jobs[0].ranks.size(), 2u);
  EXPECT_EQ(seen.jobs[0].ranks[0].steps.steps, 0u);
  EXPECT_EQ(seen.jobs[0].ranks[1].steps.steps, 3u);
  EXPECT_EQ(seen.jobs[0].ranks[1].pid, 11);
  EXPECT_TRUE(seen.jobs[0].ranks[1].seconds_since_step.has_value());
}

TEST(JobStatus, SaysWhyAJobThatIsNotFoundMayRunNevertheless) {
  const TestDirectory made;
  std::filesystem::permissions(made.path(), std::filesystem::perms::all);
  const std::string message = error_text([&] {
    look_at_job(lookup_in({{"LOCKSTEP_JOBS_DIR", made.path()}}), ::getpid());
  });
  EXPECT_THAT(message,
              AllOf(HasSubstr("runs on this host, as far as this user can see"),
                    HasSubstr("likely:  jobs cannot be listed in")));
}

}  // namespace
}  // namespace lockstep
