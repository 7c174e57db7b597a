#include "src/launch/launcher/elastic_host.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "lockstep/base/error.h"
#include "src/base/first_line.h"
#include "src/launch/worker/own_store.h"
#include "src/store/host_address.h"

namespace lockstep {

ElasticHost::ElasticHost(ElasticHostOptions options, Calls calls)
    : options_(std::move(options)), calls_(std::move(calls)) {
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
    slots_.push_back({.id = id, .start = all.start});
    if (job.joins_late) watch_for_ready(slots_.back());
  }
  watch_other_launchers();
}

// Calls `call`, which needs the job's store, unless that is gone.
template <class Call>
void ElasticHost::with_rounds(Call call) {
  if (lost_store_) return;
  try {
    call();
  } catch (const NetworkError& error) {
    lose_store(error);
  } catch (const Timeout& error) {
    lose_store(error);
  }
}

void ElasticHost::lose_store(const std::exception& error) {
  lost_store_ = true;
  changes_.reset();
  for (Slot& slot : slots_) slot.watch.reset();
  calls_.tell(fmt::format("the job's store is gone: {}; ending the workers",
                          first_line(error.what())));
  calls_.lost_store();
}

void ElasticHost::watch_for_ready(Slot& slot) {
  slot.watch =
      std::make_unique<KeyWatch>(options_.job.store_url, options_.job.token,
                                 std::vector{elastic_ready_key(slot.id)});
}

void ElasticHost::watch_other_launchers() {
  if (options_.launcher_id.empty()) return;
  changes_ = std::make_unique<KeyWatch>(
      options_.job.store_url, options_.job.token,
      std::vector{elastic_round_key(rounds_->round().number + 1),
                  std::string(kElasticOver)});
}

void ElasticHost::note_changes() {
  changes_.reset();
  with_rounds([this] {
    rounds_->refresh();
    tell_of_lost_launchers();
    calls_.changed();
    if (rounds_->is_over()) return end_late_replacements();
    watch_other_launchers();
  });
}

// One launcher of the job does: that of the new round's rank 0.
void ElasticHost::tell_of_lost_launchers() {
  const std::vector<ElasticDeath>& deaths = rounds_->deaths();
  const int first = rounds_->round().members.front();
  for (; seen_deaths_ < deaths.size(); ++seen_deaths_) {
    const ElasticDeath& death = deaths[seen_deaths_];
    if (!death.is_launcher ||
        std::ranges::find(slots_, first, &Slot::id) == slots_.end())
      continue;
    calls_.tell(death.text + "; the job goes on without its ranks");
  }
}

void ElasticHost::watch(PollSet& set) {
  if (changes_)
    set.watch(changes_->descriptor(), POLLIN, [this] { note_changes(); });
  for (const Slot& slot : slots_)
    if (slot.watch)
      set.watch(slot.watch->descriptor(), POLLIN,
                [this, id = slot.id] { note_ready(id); });
}

void ElasticHost::note_ready(int id) {
  for (Slot& slot : slots_)
    if (slot.id == id) slot.watch.reset();
  with_rounds([&] {
    rounds_->is_ready(id);
    calls_.changed();
  });
}

std::vector<int> ElasticHost::ranks() const {
  const std::vector<int>& members = rounds_->round().members;
  std::vector<int> ranks;
  for (const Slot& slot : slots_) {
    const auto member = std::ranges::find(members, slot.id);
    const bool runs = member != members.end() && !slot.given_up;
    ranks.push_back(runs ? static_cast<int>(member - members.begin()) : -1);
  }
  return ranks;
}

int ElasticHost::world_size() const {
  return static_cast<int>(rounds_->round().members.size());
}

void ElasticHost::note_good_end(int local_rank) {
  if (rounds_->is_over()) return;
  const int id = slot(local_rank).id;
  with_rounds([&] {
    if (!rounds_->ended_well(id)) early_end_ = id;
    end_late_replacements();
  });
}

// Replacements that have come too late would wait for a round, or still start,
// when the others have ended.
void ElasticHost::end_late_replacements() {
  for (std::size_t local = 0; local < slots_.size(); ++local) {
    if (!slots_[local].watch) continue;
    slots_[local].watch.reset();
    calls_.end(static_cast<int>(local));
  }
}

bool ElasticHost::goes_on_without(int local_rank,
                                  const WorkerFailure& failure) {
  bool goes_on = false;
  with_rounds([&] { goes_on = decide_about(local_rank, failure); });
  return goes_on;
}

bool ElasticHost::decide_about(int local_rank, const WorkerFailure& failure) {
  Slot& dead = slot(local_rank);
  dead.watch.reset();
  for (;;) {
    const auto decision = rounds_->died(
        dead.id,
        {.text = fmt::format("{} on {}", summary_of(failure), own_host_name()),
         .exit_code = failure.status.exit_code(),
         .lost_a_peer = failure.kind == EndKind::kConsequence});
    if (decision.next == ElasticRounds::Next::kEndJob) {
      if (!decision.why.empty()) calls_.tell("the job ends: " + decision.why);
      return false;
    }
    if (decision.ended_round > 0)
      deaths_.push_back({decision.ended_round, failure});
    tell_of_death(failure, decision);
    dead.given_up = decision.next == ElasticRounds::Next::kGoOn;
    if (dead.given_up) calls_.changed();
    if (dead.given_up || replace(local_rank, decision)) return true;
  }
}

// Whether the process could be started.
bool ElasticHost::replace(int local_rank,
                          const ElasticRounds::Decision& decision) {
  Slot& place = slot(local_rank);
  place.id = decision.replacement;
  place.start = decision.start;
  try {
    calls_.start(local_rank);
  } catch (const std::exception& error) {
    calls_.tell(error.what());
    return false;
  }
  calls_.changed();
  watch_for_ready(place);
  return true;
}

// A store that is gone with its launcher tells of no group.
const WorkerFailure* ElasticHost::unsurvived_death() const try {
  if (deaths_.empty() || lost_store_) return nullptr;
  rounds_->refresh();
  for (const auto& [round, failure] : deaths_)
    if (failure.kind != EndKind::kConsequence &&
        !rounds_->has_formed_after(round))
      return &failure;
  return nullptr;
} catch (const Error&) {
  return nullptr;
}

void ElasticHost::tell_of_early_end() const {
  const auto slot = std::ranges::find(slots_, early_end_, &Slot::id);
  if (early_end_ < 0 || slot == slots_.end()) return;
  calls_.tell(fmt::format(
      "rank {} ended with code 0 before elastic::run() had returned: after "
      "that no group forms",
      options_.job.first_rank + (slot - slots_.begin())));
}

void ElasticHost::tell_of_death(const WorkerFailure& failure,
                                const ElasticRounds::Decision& decision) {
  const std::string what =
      decision.next == ElasticRounds::Next::kReplace
          ? fmt::format(
                "the job starts another in its place (restart {} of {})",
                decision.restarts, options_.job.max_restarts)
      : rounds_->is_over()
          ? "it came too late for the training, which has ended"
          : "the job goes on without it";
  calls_.tell(fmt::format("{}; {}", summary_of(failure), what));
}

}  // namespace lockstep
