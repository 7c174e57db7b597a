// The running jobs of this host in `lockstep status`: how far each rank is, how
// fast, and which ranks hold up the others.
//
// Threads: any thread.
// Errors:  as each function says; a rank that reports no steps has none.
#pragma once

#include <sys/types.h>

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "src/base/environment.h"
#include "src/launch/record/job_list.h"
#include "src/net/step_memory.h"

namespace lockstep {

// What a rank does in a step.
enum class StepPart { kData, kCompute, kWaiting };

// "data", "compute", "waiting".
std::string_view name_of(StepPart part);

struct RankStatus {
  int rank = 0;
  pid_t pid = 0;
  RankSteps steps{};
  std::optional<double> seconds_since_step{};
};

// A rank that makes the others wait.
struct Straggler {
  enum class Kind {
    // Its steps take longer than those of the others, without their waits:
    // `seconds` instead of `others`.
    kSlow,
    // It has not ended a step for `seconds`, while others wait.
    kStalled,
    // All ranks of this host wait, since `seconds`; `rank` is the one that has
    // ended fewer steps than all others, or -1.
    kAllWait,
  };
  Kind kind = Kind::kSlow;
  int rank = 0;
  // Nothing where the program does not report which time it spends on data.
  std::optional<StepPart> part{};
  double seconds = 0;
  double others = 0;  // only of kSlow
};

struct JobStatus {
  pid_t launcher = 0;
  uid_t user = 0;
  std::vector<std::string> command{};
  std::string run_id{};
  int world_size = 1;  // of all hosts
  int restarts = 0;
  double seconds = 0;  // since the launcher began
  std::vector<RankStatus> ranks{};
  std::vector<Straggler> stragglers{};
};

struct JobStatuses {
  std::vector<JobStatus> jobs{};
  std::vector<std::string> problems{};  // why jobs may be missing
};

JobStatuses look_at_jobs(const EnvironmentLookup& lookup,
                         JobsOf whose = JobsOf::kThisUser);

// The job of the launcher alone, of any user whose jobs this one may see.
// InvalidArgument where it does not run.
JobStatuses look_at_job(const EnvironmentLookup& lookup, pid_t launcher);

std::vector<Straggler> stragglers_of(std::span<const RankStatus> ranks);

std::string to_text(const JobStatuses& jobs);
// A list of jobs.
nlohmann::ordered_json to_json_list(const std::vector<JobStatus>& jobs);

}  // namespace lockstep
