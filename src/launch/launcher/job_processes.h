// The processes of a job on this host: its workers, and what these leave
// behind.
//
// Asked to end them, it asks each process once, tells the user for which of
// them it waits, and kills those that are left after the grace. Why they end is
// not its matter. See docs/design/launch.md.
//
// Threads: one thread at a time.
// Errors:  none but those of what fills the table of workers.
#pragma once

#include <algorithm>
#include <chrono>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/deadline.h"
#include "src/launch/worker/orphan_watch.h"
#include "src/launch/worker/worker_table.h"

namespace lockstep {

class JobProcesses {
 public:
  struct Options {
    // How long processes may take to end after SIGTERM before they are killed.
    std::chrono::milliseconds grace{};
    // The store of the job, by which it knows which rank left a process behind.
    std::string store_url;
    std::function<void(const std::string&)> tell;  // the user
  };

  explicit JobProcesses(Options options) : options_(std::move(options)) {}

  WorkerTable& workers() { return workers_; }
  const WorkerTable& workers() const { return workers_; }

  // Whether every worker, and every process that they left behind, has ended.
  bool have_ended() const;

  // A child has ended, whose own children are orphans now.
  void look_for_orphans();

  void ask_to_end();
  void kill();
  // Also after ask_to_end().
  bool are_killed() const { return phase_ == Phase::kKilled; }

  // When look_for_time() next has something to do.
  Deadline due() const { return std::min(kill_at_, notice_at_); }
  // Tells for which processes it waits, or kills them.
  void look_for_time();

  // Kills and removes all at once, and waits for their ends: for a launcher
  // that gives up after an error.
  void clear();

 private:
  enum class Phase { kRunning, kAsked, kKilled };

  void kill_everything() const;
  // Those that have not ended, as a user knows them.
  std::vector<std::string> living() const;
  std::string describe(const SeenProcess& orphan) const;

  const Options options_;
  OrphanWatch orphans_;
  WorkerTable workers_;
  Phase phase_ = Phase::kRunning;
  std::chrono::steady_clock::time_point asked_at_{};
  Deadline kill_at_ = Deadline::never();
  Deadline notice_at_ = Deadline::never();
};

}  // namespace lockstep
