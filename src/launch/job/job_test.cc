// The parts of the job loop that tests of the whole program do not cover.
#include "src/launch/job/job.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <fstream>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "src/base/testing/test_directory.h"

namespace lockstep {
namespace {

class JobOfShells : public testing::Test {
 protected:
  // The exit code of a job of two shells; the results of its rounds go to
  // results_.
  int run(const std::string& script, int max_restarts) {
    LaunchOptions options;
    options.command = {"sh", "-c", script};
    options.job.workers = 2;
    options.job.max_restarts = max_restarts;
    const FileDescriptor nowhere(::open("/dev/null", O_WRONLY | O_CLOEXEC));
    const EnvironmentLookup lookup =
        [this](const std::string& name) -> std::optional<std::string> {
      if (name == "LOCKSTEP_JOBS_DIR") return jobs_.path();
      return std::nullopt;
    };
    return run_job(std::move(options), lookup,
                   {.out = nowhere.get(),
                    .err = nowhere.get(),
                    .on_end = [this](const JobResult& result) {
                      results_.push_back(result);
                    }});
  }

  TestDirectory jobs_;
  std::vector<JobResult> results_;
};

TEST_F(JobOfShells, StartsItsRanksAgainUntilTheyEndWell) {
  EXPECT_EQ(run("if [ $TORCHELASTIC_RESTART_COUNT != 2 ]; then exit 3; fi", 5),
            0);
  ASSERT_EQ(results_.size(), 3u);
  EXPECT_EQ(results_[1].exit_code, 3);
  EXPECT_EQ(results_[2].exit_code, 0);
}

TEST_F(JobOfShells, EndsWithTheCodeOfTheLastRoundIfNoRestartIsLeft) {
  EXPECT_EQ(run("if [ $RANK = 1 ]; then exit 7; fi; sleep 1000", 1), 7);
  EXPECT_EQ(results_.size(), 2u);
}

TEST_F(JobOfShells, GivesEachRoundAStoreAndATokenOfItsOwn) {
  const TestDirectory seen;
  EXPECT_EQ(
      run("if [ $RANK = 0 ]; then echo $LOCKSTEP_STORE $LOCKSTEP_TOKEN >>" +
              (seen / "rounds").string() +
              "; fi; [ $TORCHELASTIC_RESTART_COUNT = 1 ]",
          1),
      0);
  std::ifstream file(seen / "rounds");
  std::string first, second;
  std::getline(file, first);
  std::getline(file, second);
  EXPECT_NE(first, "");
  EXPECT_NE(second, "");
  EXPECT_NE(first, second);
}

}  // namespace
}  // namespace lockstep
