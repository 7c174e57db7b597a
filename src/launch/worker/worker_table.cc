#include "src/launch/worker/worker_table.h"

#include <algorithm>

namespace lockstep {
namespace {

// The local ranks of the workers that have ended as `is_wanted` says.
template <class Condition>
std::vector<int> ended_as(const std::vector<std::unique_ptr<Worker>>& workers,
                          Condition is_wanted) {
  std::vector<int> ranks;
  for (const auto& worker : workers) {
    const auto status = worker->process().exit_status();
    if (status && is_wanted(*status)) ranks.push_back(worker->local_rank());
  }
  return ranks;
}

}  // namespace

std::vector<pid_t> WorkerTable::pids() const {
  std::vector<pid_t> pids;
  pids.reserve(workers_.size());
  for (const auto& worker : workers_) pids.push_back(worker->process().pid());
  return pids;
}

bool WorkerTable::ended() const {
  return std::all_of(workers_.begin(), workers_.end(), [](const auto& worker) {
    return worker->process().exit_status().has_value();
  });
}

std::vector<int> WorkerTable::failed() const {
  return ended_as(
      workers_, [](const ExitStatus& status) { return !status.ended_well(); });
}

std::vector<int> WorkerTable::ended_well() const {
  return ended_as(workers_,
                  [](const ExitStatus& status) { return status.ended_well(); });
}

std::vector<int> WorkerTable::stopped() const {
  std::vector<int> ranks;
  for (const auto& worker : workers_)
    if (worker->process().is_stopped()) ranks.push_back(worker->rank());
  return ranks;
}

void WorkerTable::signal_all(int signal) const noexcept {
  for (const auto& worker : workers_) worker->process().signal_group(signal);
}

}  // namespace lockstep
