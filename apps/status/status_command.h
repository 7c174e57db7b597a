// `lockstep status`: the current load of this host: its cores, its memory, each
// GPU with its processes, and the running jobs.
//
// The command exits with 0, also without a GPU.
//
// Threads: any thread.
// Errors:  as each function says; an unavailable value is left out or reported
//          as a problem.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "apps/job/report_format.h"
#include "apps/status/job_status.h"
#include "src/launch/worker/gpu_inventory.h"

namespace lockstep {

struct StatusOptions {
  ReportFormat format = ReportFormat::kText;
  JobsOf whose = JobsOf::kThisUser;
  std::optional<pid_t> job{};  // only this one
};

struct HostStatus {
  std::string host{};
  int cores = 0;    // cores that this process may use
  double load = 0;  // runnable threads, mean of the last minute
  // Memory of the host; nothing where the kernel does not tell.
  std::optional<std::uint64_t> total_bytes{};
  std::optional<std::uint64_t> available_bytes{};  // the kernel's estimate
  GpuInventory gpus{};
  // The names of the processes on GPUs that this process may see.
  std::map<unsigned, std::string> programs{};
  JobStatuses jobs{};
};

// Reads everything; takes well under a second. InvalidArgument where
// options.job does not run.
HostStatus look_at_host(const EnvironmentLookup& lookup,
                        const StatusOptions& options = {});

std::string to_text(const HostStatus& status);
// One object: sizes in bytes, null where they are not known; "gpus", a list
// with null for values that the driver does not report; "problem", why the list
// is empty, or ""; "jobs", a list; "job_problems", why jobs may be missing.
std::string to_json(const HostStatus& status);

}  // namespace lockstep
