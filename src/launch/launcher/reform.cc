// The launcher of a job that re-forms in place: what a death leads to. See
// docs/design/launch.md.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "lockstep/base/error.h"
#include "src/base/first_line.h"
#include "src/launch/launcher/launcher.h"
#include "src/launch/worker/own_store.h"
#include "src/store/host_address.h"

namespace lockstep {

void Launcher::tell(const std::string& text) {
  screen_.settle();
  screen_.print_line(OutputStream::kErr, "lockstep: " + text);
}

// Of several hosts, the coordinator has begun the first round.
void Launcher::begin_rounds() {
  const JobEnvironment& job = options_.job;
  const auto store = open_store(
      job.store_url, {.token = job.token, .deadline = kJobStoreAnswers});
  if (options_.launcher_id.empty())
    ElasticRounds::begin(*store, {.launchers = {{"", job.workers}},
                                  .min_ranks = options_.min_ranks,
                                  .max_restarts = job.max_restarts});
  rounds_ = std::make_unique<ElasticRounds>(store);
  ElasticRounds::Joined all{.ids = {}, .start = job.restarts};
  for (int local = 0; local < job.workers; ++local)
    all.ids.push_back(job.first_rank + local);
  if (job.joins_late) all = rounds_->join(options_.launcher_id, job.workers);
  if (all.ids.empty())
    throw Error(
        "the job goes on without this host: its connection to the rendezvous "
        "was lost for a while\n"
        "  next:    start it here again");
  for (const int id : all.ids) {
    slots_.push_back({.id = id, .restarts = all.start});
    if (job.joins_late) watch_for_ready(slots_.back());
  }
  watch_other_launchers();
}

// Calls `call`, which needs the job's store, unless that is gone.
template <class Call>
void Launcher::with_rounds(Call call) {
  if (result_.lost_store) return;
  try {
    call();
  } catch (const NetworkError& error) {
    lose_rounds(error);
  } catch (const Timeout& error) {
    lose_rounds(error);
  }
}

// Without the store the workers cannot go on after a death, nor be replaced.
void Launcher::lose_rounds(const std::exception& error) {
  result_.lost_store = true;
  changes_.reset();
  for (Slot& slot : slots_) slot.watch.reset();
  tell(fmt::format("the job's store is gone: {}; ending the workers",
                   first_line(error.what())));
  if (result_.exit_code == 0) result_.exit_code = 1;
  if (phase_ == Phase::kRunning) end_job();
}

void Launcher::watch_for_ready(Slot& slot) {
  slot.watch =
      std::make_unique<KeyWatch>(options_.job.store_url, options_.job.token,
                                 std::vector{elastic_ready_key(slot.id)});
}

void Launcher::watch_other_launchers() {
  if (options_.launcher_id.empty()) return;
  changes_ = std::make_unique<KeyWatch>(
      options_.job.store_url, options_.job.token,
      std::vector{elastic_round_key(rounds_->round().number + 1),
                  std::string(kElasticOver)});
}

void Launcher::note_changes() {
  changes_.reset();
  with_rounds([this] {
    rounds_->refresh();
    tell_of_lost_launchers();
    tell_workers();
    if (rounds_->is_over()) return end_late_replacements();
    watch_other_launchers();
  });
}

// One launcher of the job does: that of the new round's rank 0.
void Launcher::tell_of_lost_launchers() {
  const std::vector<ElasticDeath>& deaths = rounds_->deaths();
  const int first = rounds_->round().members.front();
  for (; seen_deaths_ < deaths.size(); ++seen_deaths_) {
    const ElasticDeath& death = deaths[seen_deaths_];
    if (!death.is_launcher ||
        std::ranges::find(slots_, first, &Slot::id) == slots_.end())
      continue;
    tell(death.text + "; the job goes on without its ranks");
  }
}

void Launcher::watch_rounds(PollSet& set) {
  if (phase_ != Phase::kRunning) return;
  if (changes_)
    set.watch(changes_->descriptor(), POLLIN, [this] { note_changes(); });
  for (const Slot& slot : slots_)
    if (slot.watch)
      set.watch(slot.watch->descriptor(), POLLIN,
                [this, id = slot.id] { note_ready(id); });
}

void Launcher::note_ready(int id) {
  for (Slot& slot : slots_)
    if (slot.id == id) slot.watch.reset();
  with_rounds([&] {
    rounds_->is_ready(id);
    tell_workers();
  });
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
  with_rounds([&] {
    if (!rounds_->ended_well(id)) early_end_ = id;
    end_late_replacements();
  });
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
  bool goes_on = false;
  with_rounds([&] { goes_on = decide_about(local_rank); });
  return goes_on;
}

bool Launcher::decide_about(int local_rank) {
  Slot& slot = slots_[static_cast<std::size_t>(local_rank)];
  slot.watch.reset();
  for (;;) {
    const WorkerFailure failure = failure_of(failed(local_rank));
    const auto decision = rounds_->died(
        slot.id,
        {.text = fmt::format("{} on {}", summary_of(failure), own_host_name()),
         .exit_code = failure.status.exit_code(),
         .lost_a_peer = failure.lost_a_peer});
    if (decision.next == ElasticRounds::Next::kEndJob) {
      if (!decision.why.empty()) tell("the job ends: " + decision.why);
      return false;
    }
    if (decision.ended_round > 0)
      deaths_.push_back({decision.ended_round, failure});
    tell_of_death(failure, decision);
    slot.given_up = decision.next == ElasticRounds::Next::kGoOn;
    if (slot.given_up) tell_workers();
    if (slot.given_up || replace(local_rank, decision)) return true;
  }
}

// Whether the process could be started.
bool Launcher::replace(int local_rank,
                       const ElasticRounds::Decision& decision) {
  Slot& slot = slots_[static_cast<std::size_t>(local_rank)];
  slot.id = decision.replacement;
  slot.restarts = decision.start;
  try {
    workers_.replace(make_worker(local_rank, slot.restarts));
  } catch (const std::exception& error) {
    tell(error.what());
    return false;
  }
  tell_workers();
  watch_for_ready(slot);
  return true;
}

// A store that is gone with its launcher tells of no group.
const WorkerFailure* Launcher::unsurvived_death() const try {
  if (deaths_.empty() || result_.lost_store) return nullptr;
  rounds_->refresh();
  for (const auto& [round, failure] : deaths_)
    if (!failure.lost_a_peer && !rounds_->has_formed_after(round))
      return &failure;
  return nullptr;
} catch (const Error&) {
  return nullptr;
}

// Why the others could not go on.
void Launcher::tell_of_early_end() {
  const auto slot = std::ranges::find(slots_, early_end_, &Slot::id);
  if (early_end_ < 0 || slot == slots_.end()) return;
  tell(fmt::format(
      "rank {} ended with code 0 before elastic::run() had returned: after "
      "that no group forms",
      options_.job.first_rank + (slot - slots_.begin())));
}

void Launcher::tell_of_death(const WorkerFailure& failure,
                             const ElasticRounds::Decision& decision) {
  const std::string what =
      decision.next == ElasticRounds::Next::kReplace
          ? fmt::format(
                "the job starts another in its place (restart {} of {})",
                decision.restarts, options_.job.max_restarts)
      : rounds_->is_over()
          ? "it came too late for the training, which has ended"
          : "the job goes on without it";
  tell(fmt::format("{}; {}", summary_of(failure), what));
}

}  // namespace lockstep
