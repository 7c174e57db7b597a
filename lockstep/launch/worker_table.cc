#include "lockstep/launch/worker_table.h"

#include <algorithm>

namespace lockstep {

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

Worker* WorkerTable::first_failure() const {
  Worker* first = nullptr;
  for (const auto& worker : workers_) {
    const auto status = worker->process().exit_status();
    if (!status || status->ended_well()) continue;
    if (status->signal != 0) return worker.get();
    if (first == nullptr) first = worker.get();
  }
  return first;
}

void WorkerTable::signal_all(int signal) const noexcept {
  for (const auto& worker : workers_) worker->process().signal_group(signal);
}

}  // namespace lockstep
