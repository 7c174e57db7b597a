// The launcher of a job that re-forms in place: what a death leads to. See
// docs/design/launch.md.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "src/launch/launcher/launcher.h"
#include "src/launch/worker/own_store.h"

namespace lockstep {

void Launcher::begin_rounds() {
  const JobEnvironment& job = options_.job;
  rounds_ = std::make_unique<ElasticRounds>(
      open_store(job.store_url,
                 {.token = job.token, .deadline = kOwnStoreAnswers}),
      ElasticRounds::Options{.workers = job.workers,
                             .min_ranks = options_.min_ranks,
                             .max_restarts = job.max_restarts});
  for (int local = 0; local < job.workers; ++local)
    slots_.push_back({.id = local, .restarts = job.restarts});
}

void Launcher::watch_replacements(PollSet& set) {
  for (const Slot& slot : slots_)
    if (slot.watch)
      set.watch(slot.watch->descriptor(), POLLIN,
                [this, id = slot.id] { note_ready(id); });
}

void Launcher::note_ready(int id) {
  for (Slot& slot : slots_)
    if (slot.id == id) slot.watch.reset();
  rounds_->is_ready(id);
  tell_workers();
}

void Launcher::tell_workers() {
  if (!options_.on_start) return;
  const JobEnvironment& job = options_.job;
  RunningWorkers running{
      .pids = workers_.pids(), .ranks = {}, .world_size = world_size_of(job)};
  for (int local = 0; local < job.workers; ++local)
    running.ranks.push_back(job.first_rank + local);
  if (rounds_) {
    const std::vector<int>& members = rounds_->round().members;
    running.world_size = static_cast<int>(members.size());
    for (std::size_t local = 0; local < slots_.size(); ++local) {
      const auto member = std::ranges::find(members, slots_[local].id);
      const bool runs = member != members.end() && !slots_[local].given_up;
      running.ranks[local] =
          runs ? static_cast<int>(member - members.begin()) : -1;
    }
  }
  options_.on_start(running);
}

std::vector<int> Launcher::ids_that_ended_well() const {
  std::vector<int> ids;
  if (!rounds_) return ids;
  for (const auto& worker : workers_.all()) {
    const auto status = worker->process().exit_status();
    if (status && status->ended_well())
      ids.push_back(slots_[static_cast<std::size_t>(worker->local_rank())].id);
  }
  return ids;
}

void Launcher::note_good_end(int id) {
  if (rounds_->is_over()) return;
  rounds_->ended_well(id);
  end_late_replacements();
}

// Replacements that have come too late would wait for a round, or still start,
// when the others have ended.
void Launcher::end_late_replacements() {
  for (const auto& worker : workers_.all()) {
    Slot& slot = slots_[static_cast<std::size_t>(worker->local_rank())];
    if (!slot.watch) continue;
    slot.watch.reset();
    worker->process().signal_group(SIGTERM);
  }
}

bool Launcher::goes_on_without(int local_rank) {
  Slot& slot = slots_[static_cast<std::size_t>(local_rank)];
  slot.watch.reset();
  for (;;) {
    const ElasticRound before = rounds_->round();
    const ElasticRounds::Next next = rounds_->died(slot.id);
    if (next == ElasticRounds::Next::kEndJob) return false;
    const WorkerFailure failure =
        failure_of(local_rank, std::chrono::steady_clock::now());
    // No round follows the death of a replacement that was in none.
    if (std::ranges::find(before.members, slot.id) != before.members.end())
      deaths_.push_back({before.number, failure});
    tell_of_death(failure, next);
    slot.given_up = next == ElasticRounds::Next::kGoOn;
    if (slot.given_up) tell_workers();
    if (slot.given_up || replace(local_rank)) return true;
  }
}

// Whether the process could be started.
bool Launcher::replace(int local_rank) {
  Slot& slot = slots_[static_cast<std::size_t>(local_rank)];
  slot.id = rounds_->add();
  slot.restarts = rounds_->restarts();
  try {
    workers_.replace(make_worker(local_rank, slot.restarts));
  } catch (const std::exception& error) {
    screen_.print_line(OutputStream::kErr,
                       std::string("lockstep: ") + error.what());
    return false;
  }
  tell_workers();
  slot.watch = std::make_unique<ReadyWatch>(options_.job.store_url,
                                            options_.job.token, slot.id);
  return true;
}

const WorkerFailure* Launcher::unsurvived_death() const {
  for (const auto& [round, failure] : deaths_)
    if (!failure.lost_a_peer && !rounds_->has_formed_after(round))
      return &failure;
  return nullptr;
}

void Launcher::tell_of_death(const WorkerFailure& failure,
                             ElasticRounds::Next next) {
  const std::string what =
      next == ElasticRounds::Next::kReplace
          ? fmt::format("starts another in its place (restart {} of {})",
                        rounds_->restarts() + 1, options_.job.max_restarts)
          : "goes on without it";
  screen_.settle();
  screen_.print_line(
      OutputStream::kErr,
      fmt::format("lockstep: {}; the job {}", summary_of(failure), what));
}

}  // namespace lockstep
