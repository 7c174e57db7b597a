// `lockstep status` beside a running job.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>

#include "launched_command.h"

namespace lockstep {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::StartsWith;

class RunningJob {
 public:
  explicit RunningJob(const std::vector<std::string>& words)
      : command_(arguments(words), {variable()}) {}
  ~RunningJob() { command_.signal(SIGINT); }
  RunningJob(const RunningJob&) = delete;
  RunningJob& operator=(const RunningJob&) = delete;

  LaunchedCommand& command() { return command_; }
  std::filesystem::path folder() const { return made_ / "jobs"; }

  CommandResult status(const std::vector<std::string>& flags) const {
    std::vector<std::string> words{"status"};
    words.insert(words.end(), flags.begin(), flags.end());
    return run_lockstep(words, {variable()});
  }
  json jobs() const { return json::parse(status({"--json"}).out)["jobs"]; }

  // The job as soon as `holds`; null if that never is.
  json job_when(const std::function<bool(const json& job)>& holds) const {
    for (const Deadline end = LaunchedCommand::timeout(); !end.expired();) {
      const json all = jobs();
      if (!all.empty() && holds(all[0])) return all[0];
    }
    return {};
  }

 private:
  static std::vector<std::string> arguments(
      const std::vector<std::string>& words) {
    std::vector<std::string> all{"run", "--grace=0.5", "-n", "2"};
    all.insert(all.end(), words.begin(), words.end());
    return all;
  }
  std::string variable() const {
    return "LOCKSTEP_JOBS_DIR=" + folder().string();
  }

  TestDirectory made_;
  LaunchedCommand command_;
};

bool has_straggler(const json& job) { return !job["stragglers"].empty(); }

TEST(Status, ShowsAJobOfAnyProgram) {
  const Gate gate;
  RunningJob running({"sh", "-c", "echo begun; " + gate.wait() + "true"});
  const json job = running.job_when([](const json&) { return true; });
  ASSERT_FALSE(job.is_null());
  EXPECT_EQ(job["launcher"], running.command().pid());
  EXPECT_EQ(job["command"][0], "sh");
  EXPECT_EQ(job["world_size"], 2);
  ASSERT_EQ(job["ranks"].size(), 2u);
  EXPECT_GT(job["ranks"][1]["pid"], 0);
  EXPECT_EQ(job["ranks"][1]["steps"], 0);
  EXPECT_THAT(running.status({}).out, HasSubstr("2 of 2 ranks"));
}

TEST(Status, ShowsOneJobAlone) {
  const Gate gate;
  RunningJob running({"sh", "-c", gate.wait() + "true"});
  ASSERT_FALSE(running.job_when([](const json&) { return true; }).is_null());
  const std::string number = std::to_string(running.command().pid());
  const CommandResult one = running.status({number});
  EXPECT_EQ(one.exit_code, 0) << one.err;
  EXPECT_THAT(one.out, StartsWith("job " + number + "  sh -c"));
  EXPECT_THAT(running.status({"--all"}).out, HasSubstr("job " + number));
  const CommandResult none = running.status({"1"});
  EXPECT_EQ(none.exit_code, 2);
  EXPECT_THAT(none.err, HasSubstr("no job 1 runs on this host"));
}

TEST(Status, LosesAJobThatHasEndedInAnyWay) {
  for (const int signal : {SIGINT, SIGKILL}) {
    const Gate gate;
    RunningJob running({"sh", "-c", gate.wait() + "true"});
    ASSERT_FALSE(running.job_when([](const json&) { return true; }).is_null());
    running.command().signal(signal);
    ASSERT_TRUE(running.command().wait_until_nothing_is_left());
    running.command().finish();
    EXPECT_EQ(running.jobs().size(), 0u);
    EXPECT_TRUE(!std::filesystem::exists(running.folder()) ||
                std::filesystem::is_empty(running.folder()))
        << signal;
  }
}

TEST(Status, NamesTheSlowRankAndWhere) {
  for (const std::string where : {"data", "compute"}) {
    RunningJob running({LOCKSTEP_STEPPER, where});
    const json job = running.job_when(has_straggler);
    ASSERT_FALSE(job.is_null());
    const json& straggler = job["stragglers"][0];
    EXPECT_EQ(straggler["rank"], 1) << job;
    EXPECT_EQ(straggler["phase"], where) << job;
    EXPECT_GT(straggler["seconds"], straggler["seconds_of_others"]);
    const json& rank = job["ranks"][1];
    EXPECT_GT(rank["samples_per_second"], 0);
    EXPECT_GT(rank["step_seconds"][where],
              rank["step_seconds"]["total"].get<double>() / 2);
  }
}

TEST(Status, NamesTheRankForWhichTheOthersWait) {
  const Gate gate;
  RunningJob running({LOCKSTEP_STEPPER, "stop", gate.path()});
  const json job = running.job_when([](const json& seen) {
    return has_straggler(seen) && seen["ranks"][0]["activity"] == "waiting" &&
           seen["stragglers"][0]["seconds_of_others"].is_null();
  });
  ASSERT_FALSE(job.is_null());
  EXPECT_EQ(job["stragglers"][0]["rank"], 1) << job;
  EXPECT_EQ(job["stragglers"][0]["phase"], "compute") << job;
  EXPECT_THAT(running.status({}).out,
              HasSubstr("rank 1 holds up the others: in compute"));
}

}  // namespace
}  // namespace lockstep
