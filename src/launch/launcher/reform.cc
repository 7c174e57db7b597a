// The launcher of a job that re-forms in place: what a death leads to. See
// docs/design/launch.md.
#include <fmt/format.h>

#include <chrono>
#include <utility>

#include "src/launch/launcher/launcher.h"

namespace lockstep {
namespace {

// This process serves the store.
constexpr std::chrono::seconds kRoundsStoreConnects{10};

}  // namespace

void Launcher::begin_rounds() {
  const JobEnvironment& job = options_.job;
  rounds_ = std::make_unique<ElasticRounds>(
      open_store(job.store_url,
                 {.token = job.token, .deadline = kRoundsStoreConnects}),
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
}

void Launcher::note_good_ends() {
  for (const auto& worker : workers_.all()) {
    const auto status = worker->process().exit_status();
    if (status && status->ended_well())
      rounds_->ended_well(
          slots_[static_cast<std::size_t>(worker->local_rank())].id);
  }
}

bool Launcher::goes_on_without(int local_rank) {
  Slot& slot = slots_[static_cast<std::size_t>(local_rank)];
  slot.watch.reset();
  const ElasticRounds::Next next = rounds_->died(slot.id);
  if (next == ElasticRounds::Next::kEndJob) return false;
  tell_of_death(local_rank, next);
  if (next == ElasticRounds::Next::kReplace)
    replace(local_rank);
  else
    slot.given_up = true;
  return true;
}

void Launcher::replace(int local_rank) {
  Slot& slot = slots_[static_cast<std::size_t>(local_rank)];
  slot.id = rounds_->add();
  slot.restarts = rounds_->restarts();
  workers_.replace(make_worker(local_rank, slot.restarts));
  if (options_.on_start) options_.on_start(workers_.pids());
  slot.watch = std::make_unique<ReadyWatch>(options_.job.store_url,
                                            options_.job.token, slot.id);
}

void Launcher::tell_of_death(int local_rank, ElasticRounds::Next next) {
  const WorkerFailure failure =
      failure_of(local_rank, std::chrono::steady_clock::now());
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
