// The running jobs of a host: each launcher lists its job in a folder of its
// user, and `lockstep status` reads these folders. docs/formats/running_jobs.md
// describes the files.
//
// Threads: one thread at a time.
// Errors:  none: a job that cannot be listed runs nevertheless, and the reader
//          skips what it cannot use.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/environment.h"
#include "src/net/file_descriptor.h"

namespace lockstep {

struct ListedJob {
  pid_t launcher = 0;
  std::vector<std::string> command{};
  std::string run_id{};  // --rdzv-id; "none" without one
  int world_size = 1;    // of all hosts
  int restarts = 0;
  // Of this host's workers, by local rank.
  std::vector<pid_t> pids{};
  std::vector<int> ranks{};  // negative: no rank at present
  // When the launcher began; steady_clock is the same in all processes.
  std::chrono::steady_clock::time_point began{};
  // Set by the reader.
  std::chrono::duration<double> running{};
  uid_t user = 0;
  FileDescriptor steps{};  // for read_rank_steps(), by local rank
};

// The folder of this user's jobs: LOCKSTEP_JOBS_DIR, made absolute, or one in
// /dev/shm, where memory that is mapped by several processes is not written to
// a disk.
std::filesystem::path job_list_folder(const EnvironmentLookup& lookup);

// A job's files in the folder, from its construction to its destruction. The
// kernel frees their lock when the launcher ends in any way, so that others can
// remove what a killed one has left.
class JobListing {
 public:
  // Makes the folder and the file of the steps of `workers` ranks, and removes
  // files of launchers that have ended.
  JobListing(std::filesystem::path folder, int workers);
  ~JobListing();
  JobListing(const JobListing&) = delete;
  JobListing& operator=(const JobListing&) = delete;

  // For the workers' environment; empty if the job cannot be listed.
  std::string steps_file() const;
  // Lists the job, whose workers have started.
  void publish(const ListedJob& job);

 private:
  void make_file(int workers);
  std::string path_of(std::string_view ending) const;

  const std::filesystem::path folder_;
  std::string stem_;
  FileDescriptor lock_;  // the file of steps
};

struct JobList {
  std::vector<ListedJob> jobs;  // the oldest first
  // Why jobs may be missing, a sentence each.
  std::vector<std::string> problems;
};

enum class JobsOf { kThisUser, kAllUsers };

// The running jobs; those of other users only for root, and not where
// LOCKSTEP_JOBS_DIR names one folder. Removes files of launchers that have
// ended.
JobList list_jobs(const EnvironmentLookup& lookup,
                  JobsOf whose = JobsOf::kThisUser);

}  // namespace lockstep
