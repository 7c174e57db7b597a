// The workers of this host, by their local ranks, which all methods use.
//
// Threads: one thread at a time.
// Errors:  SystemError when a worker cannot be started; the started ones are
//          killed.
#pragma once

#include <sys/types.h>

#include <memory>
#include <utility>
#include <vector>

#include "src/launch/worker/worker.h"

namespace lockstep {

class WorkerTable {
 public:
  void add(std::unique_ptr<Worker> worker) {
    workers_.push_back(std::move(worker));
  }

  // Puts `worker` in the place of the one with its local rank, which has ended,
  // and kills what is left of that one's process group.
  void replace(std::unique_ptr<Worker> worker) {
    workers_.at(static_cast<std::size_t>(worker->local_rank())) =
        std::move(worker);
  }

  const std::vector<std::unique_ptr<Worker>>& all() const { return workers_; }

  // The workers' pids, also of those that have ended.
  std::vector<pid_t> pids() const;

  // Whether every worker has ended.
  bool ended() const;

  // The failed workers, in the order of ranks.
  std::vector<int> failed() const;
  // Those that returned 0.
  std::vector<int> ended_well() const;
  // The ranks whose process a signal has stopped.
  std::vector<int> stopped() const;

  // Signals the process groups of all workers, also of those that have ended.
  void signal_all(int signal) const noexcept;

  // Kills and removes all workers.
  void clear() { workers_.clear(); }

 private:
  std::vector<std::unique_ptr<Worker>> workers_;
};

}  // namespace lockstep
