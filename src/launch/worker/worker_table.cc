#include "src/launch/worker/worker_table.h"

#include <algorithm>
#include <csignal>
#include <initializer_list>
#include <string>
#include <string_view>

namespace lockstep {
namespace {

// Whether the last lines have one of the texts.
bool printed(const Worker& worker,
             std::initializer_list<std::string_view> texts) {
  return std::ranges::any_of(worker.tail().lines(), [&](const auto& line) {
    return std::ranges::any_of(texts, [&](std::string_view text) {
      return line.find(text) != std::string::npos;
    });
  });
}

// As src/train/checkpoint/rank_zero.h quotes another rank's error.
bool quotes_a_peer(const Worker& worker) {
  return printed(worker, {", and therefore on rank "});
}

// Also by the message of a PeerFailure, printed by the program or by the C++
// runtime.
bool missed_a_peer(const Worker& worker) {
  return quotes_a_peer(worker) ||
         printed(worker, {"PeerFailure", " is gone: "});
}

// The higher, the more likely the worker ended because of another one.
int innocence_of(const Worker& worker) {
  // A survivor may die by any signal after it has lost its peer.
  if (missed_a_peer(worker)) return 2;
  const int signal = worker.process().last_status().signal;
  // A C++ program that ends by an exception gets SIGABRT.
  return signal != 0 && signal != SIGABRT ? 0 : 1;
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
  std::vector<int> ranks;
  for (const auto& worker : workers_) {
    const auto status = worker->process().exit_status();
    if (status && !status->ended_well()) ranks.push_back(worker->local_rank());
  }
  return ranks;
}

std::vector<int> WorkerTable::stopped() const {
  std::vector<int> ranks;
  for (const auto& worker : workers_)
    if (worker->process().is_stopped()) ranks.push_back(worker->rank());
  return ranks;
}

bool WorkerTable::quote_peers(std::span<const int> ranks) const {
  return std::ranges::any_of(ranks, [this](int rank) {
    return quotes_a_peer(*workers_.at(static_cast<std::size_t>(rank)));
  });
}

bool WorkerTable::missed_peers(std::span<const int> ranks) const {
  return std::ranges::all_of(ranks, [this](int rank) {
    return missed_a_peer(*workers_.at(static_cast<std::size_t>(rank)));
  });
}

Worker& WorkerTable::culprit(std::span<const int> ranks) const {
  const auto worker_of = [this](int rank) -> Worker& {
    return *workers_.at(static_cast<std::size_t>(rank));
  };
  return worker_of(*std::ranges::min_element(
      ranks, {}, [&](int rank) { return innocence_of(worker_of(rank)); }));
}

void WorkerTable::signal_all(int signal) const noexcept {
  for (const auto& worker : workers_) worker->process().signal_group(signal);
}

}  // namespace lockstep
