// The workers of a job, by rank.
//
// Threads: one thread at a time.
// Errors:  SystemError when one cannot be started; those that were are killed.
#pragma once

#include <sys/types.h>

#include <memory>
#include <span>
#include <vector>

#include "lockstep/launch/worker.h"

namespace lockstep {

class WorkerTable {
 public:
  void add(std::unique_ptr<Worker> worker) {
    workers_.push_back(std::move(worker));
  }

  const std::vector<std::unique_ptr<Worker>>& all() const { return workers_; }

  // Their process numbers, ended or not.
  std::vector<pid_t> pids() const;

  // Whether every one has ended.
  bool ended() const;

  // Those that did not end well, by rank.
  std::vector<int> failed() const;

  // The one to blame of `ranks`, which failed, in the order of their ends: the
  // first that a signal killed from outside; otherwise the first that ended by
  // itself; last one whose last lines say that it missed a peer, as survivors
  // do, whichever way they end. drain() comes first.
  Worker& culprit(std::span<const int> ranks) const;

  // Signals the process groups of all, of those too that have ended.
  void signal_all(int signal) const noexcept;

  // Kills and forgets all.
  void clear() { workers_.clear(); }

 private:
  std::vector<std::unique_ptr<Worker>> workers_;
};

}  // namespace lockstep
