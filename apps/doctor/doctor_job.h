// `lockstep doctor` as the ranks of a job, for example by `lockstep run -H a,b
// lockstep doctor`: what each host has, and what lies between the hosts.
//
// The ranks form a group, as those of a training job do. The first rank of each
// host examines its host; rank 0 gathers and compares.
//
// Threads: the main thread; see doctor_command.h.
// Errors:  InvalidArgument for malformed environment variables. A group that
//          cannot be formed is a finding, and so is a measurement that fails.
#pragma once

#include <chrono>
#include <exception>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "apps/doctor/doctor_command.h"
#include "lockstep/comm/process_group.h"

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
  std::size_t from = 0, to = 0;   // indexes of JobReport::hosts
  double bytes_per_second = 0;    // 0: the measurement failed
  double round_trip_seconds = 0;  // of an empty message
};

// Whether this process is one of several ranks that a launcher started.
bool is_rank_of_job(const EnvironmentLookup& lookup);

// What a rank tells the user before examine_job(), which may wait for other
// ranks without output; empty on ranks that are not the first of their host.
std::string announcement(const EnvironmentLookup& lookup);

// How long the ranks wait for each other: LOCKSTEP_RENDEZVOUS_TIMEOUT, by
// default less than a training job.
std::chrono::duration<double> rendezvous_time(const EnvironmentLookup& lookup);

// Every rank of the job calls it. On rank 0 all hosts; nothing on the others.
// Where no group can be formed, the first rank of each host gets its own host.
// It sets LOCKSTEP_RENDEZVOUS_TIMEOUT to rendezvous_time().
std::optional<JobReport> examine_job(const EnvironmentLookup& lookup);

// The part within the group. `own` is empty on ranks that are not the first of
// their host. Throws where the ranks cannot exchange their reports; an error
// after that is a finding. Complete on rank 0.
JobReport examine_between(ProcessGroup& group,
                          const std::optional<HostReport>& own);

// A host's report as its first rank, `rank`, sends it. One of another version
// may be read in part only; a finding then says so.
HostReport read_host_report(std::string_view text, int rank);

// The first line of an error, who is missing, and the likely cause, on one
// line.
std::string reason_of(const std::exception& error);

// The judgements of rank 0.
Finding compare_versions(std::span<const HostReport> hosts);
Finding judge_clocks(std::span<const HostReport> hosts,
                     std::span<const ClockOffset> offsets);
std::vector<Finding> judge_links(std::span<const HostReport> hosts,
                                 std::span<const LinkSpeed> links);

// Measured by all ranks of the group together; `leaders` are the first ranks of
// the hosts. The results are appended one by one, so that those before an error
// remain. Complete on rank 0.
void measure_clocks(ProcessGroup& group, std::span<const int> leaders,
                    std::vector<ClockOffset>& offsets);
void measure_links(ProcessGroup& group, std::span<const int> leaders,
                   std::vector<LinkSpeed>& links);

std::string to_text(const JobReport& report);
std::string to_json(const JobReport& report);

}  // namespace lockstep
