// `lockstep doctor` as the ranks of a job, for example by `lockstep run -H a,b
// lockstep doctor`: what each host has, and what lies between the hosts.
//
// The ranks form a group, as those of a training job do. The first rank of each
// host examines its host; rank 0 gathers and compares.
//
// Threads: the main thread; see doctor_command.h.
// Errors:  InvalidArgument for malformed environment variables. A group that
//          cannot be formed is a finding.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "src/tools/doctor/doctor_command.h"

namespace lockstep {

struct HostReport {
  std::string host{};
  int rank = 0;  // its first one
  // What must be the same on all hosts; empty where a host has none.
  std::string lockstep{};
  std::string libtorch{};
  std::string driver{};
  DoctorReport report{};
};

struct JobReport {
  std::vector<HostReport> hosts{};
  std::vector<Finding> between{};  // the hosts

  bool can_train() const;
};

// How far a host's clock is ahead of the first host's.
struct ClockOffset {
  std::size_t host = 0;  // index of JobReport::hosts
  double seconds = 0;
  double uncertainty = 0;  // half of the fastest round trip
};

// Between two hosts, in one direction.
struct LinkSpeed {
  std::size_t from = 0, to = 0;  // indexes of JobReport::hosts
  double bytes_per_second = 0;
  double round_trip_seconds = 0;  // of an empty message
};

// Whether this process is one of several ranks that a launcher started.
bool is_rank_of_job(const EnvironmentLookup& lookup);

// Every rank of the job calls it. On rank 0 all hosts; nothing on the others.
// Where no group can be formed, the first rank of each host gets its own host.
std::optional<JobReport> examine_job(const EnvironmentLookup& lookup);

// The judgements of rank 0.
Finding compare_versions(std::span<const HostReport> hosts);
Finding judge_clocks(std::span<const HostReport> hosts,
                     std::span<const ClockOffset> offsets);
std::vector<Finding> judge_links(std::span<const HostReport> hosts,
                                 std::span<const LinkSpeed> links);

// Measured by all ranks of the group together; `leaders` are the first ranks of
// the hosts. Complete on rank 0.
std::vector<ClockOffset> measure_clocks(ProcessGroup& group,
                                        std::span<const int> leaders);
std::vector<LinkSpeed> measure_links(ProcessGroup& group,
                                     std::span<const int> leaders);

std::string to_text(const JobReport& report);
std::string to_json(const JobReport& report);

}  // namespace lockstep
