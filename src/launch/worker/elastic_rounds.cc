#include "src/launch/worker/elastic_rounds.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "lockstep/base/error.h"
#include "src/launch/worker/own_store.h"
#include "src/store/peek.h"

namespace lockstep {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(ElasticRound, number, members)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(ElasticDeath, text, exit_code, lost_a_peer,
                                   is_launcher, launcher, round)

namespace {

constexpr std::string_view kState = "elastic/state";

template <class Value>
bool has(const std::vector<Value>& values, const Value& wanted) {
  return std::ranges::find(values, wanted) != values.end();
}

}  // namespace

struct ElasticRounds::State {
  struct LivingWorker {
    int id = 0;
    std::string launcher;

    friend bool operator==(const LivingWorker&, const LivingWorker&) = default;
    NLOHMANN_DEFINE_TYPE_INTRUSIVE(LivingWorker, id, launcher)
  };

  int first_workers = 0;  // with the ids 0, 1, …
  int min_ranks = 1;
  int max_restarts = 0;
  std::vector<LivingWorker> living{};
  std::vector<std::string> lost{};  // launchers
  std::vector<int> ready{};         // not members yet
  int ended = 0;                    // the last round that a death has ended
  ElasticRound round{};
  int next_id = 0;
  int restarts = 0;         // replacements
  int starts = 0;           // of replacements, and of hosts that joined
  bool has_failed = false;  // a death ends the job
  std::string over{};       // why no further round begins; empty: one may
  std::vector<ElasticDeath> deaths{};

  friend bool operator==(const State&, const State&) = default;
  NLOHMANN_DEFINE_TYPE_INTRUSIVE(State, first_workers, min_ranks, max_restarts,
                                 living, lost, ready, ended, round, next_id,
                                 restarts, starts, has_failed, over, deaths)

  bool is_living(int id) const {
    return std::ranges::find(living, id, &LivingWorker::id) != living.end();
  }

  int add(const std::string& launcher) {
    living.push_back({next_id, launcher});
    return next_id++;
  }

  // The living members, then the replacements that are ready.
  std::vector<int> candidates() const {
    std::vector<int> ids;
    std::ranges::copy_if(round.members, std::back_inserter(ids),
                         [this](int id) { return is_living(id); });
    ids.insert(ids.end(), ready.begin(), ready.end());
    return ids;
  }

  void begin_round_if_changed() {
    std::vector<int> ids = candidates();
    if (has_failed || ids == round.members || std::ssize(ids) < min_ranks)
      return;
    round = {.number = round.number + 1, .members = std::move(ids)};
    ready.clear();
  }

  std::string why_none_is_replaced() const {
    if (max_restarts == 0)
      return "no dead rank is replaced (--max-restarts is 0)";
    return fmt::format("{} of {} replacements are used (--max-restarts)",
                       restarts, max_restarts);
  }

  Bytes encoded() const {
    return to_bytes(nlohmann::json(*this).dump(
        -1, ' ', false, nlohmann::json::error_handler_t::replace));
  }
};

void ElasticRounds::begin(Store& store, const Options& options) {
  State state{.min_ranks = options.min_ranks,
              .max_restarts = options.max_restarts};
  for (const auto& [launcher, workers] : options.launchers)
    for (int i = 0; i < workers; ++i)
      state.round.members.push_back(state.add(launcher));
  state.round.number = 1;
  state.first_workers = state.next_id;
  store.set(kState, state.encoded(), kJobStoreAnswers);
  store.set(elastic_round_key(1), to_bytes(encode(state.round)),
            kJobStoreAnswers);
}

ElasticRounds::ElasticRounds(std::shared_ptr<Store> store)
    : store_(std::move(store)), state_(std::make_unique<State>()) {
  see(store_->get(kState, kJobStoreAnswers));
}

ElasticRounds::~ElasticRounds() = default;

const ElasticRound& ElasticRounds::round() const { return state_->round; }

const std::vector<ElasticDeath>& ElasticRounds::deaths() const {
  return state_->deaths;
}

bool ElasticRounds::is_over() const { return !state_->over.empty(); }

void ElasticRounds::see(const Bytes& value) try {
  *state_ = nlohmann::json::parse(to_text(value)).get<State>();
  known_ = value;
} catch (const nlohmann::json::exception& error) {
  throw InvalidArgument(fmt::format(
      "the job's store holds no state of a job that re-forms in place: {}",
      error.what()));
}

void ElasticRounds::refresh() { see(peek(*store_, kState, kJobStoreAnswers)); }

// Sets the keys that follow from the state, also for a launcher that ended
// after it had changed the state. Each change begins with this, so that the
// keys of rounds are set in their order.
void ElasticRounds::publish() {
  const ElasticRound& round = state_->round;
  if (published_ < round.number)
    store_->set(elastic_round_key(round.number), to_bytes(encode(round)),
                kJobStoreAnswers);
  published_ = round.number;
  if (!state_->over.empty() && !over_published_)
    store_->set(kElasticOver, to_bytes(state_->over), kJobStoreAnswers);
  over_published_ = !state_->over.empty();
}

// Calls change(state) until no other launcher has changed the state meanwhile;
// returns what the last call returned. A call that changes nothing counts only
// where it has seen the present state.
template <class Change>
auto ElasticRounds::change(Change change) {
  for (bool is_fresh = false;;) {
    publish();
    State next = *state_;
    auto result = change(next);
    if (next == *state_) {
      if (std::exchange(is_fresh, true)) return result;
      refresh();
      continue;
    }
    is_fresh = true;
    const Bytes mine = next.encoded();
    see(store_->compare_and_set(kState, known_, mine, kJobStoreAnswers));
    const bool stands = known_ == mine;
    publish();
    if (stands) return result;
  }
}

ElasticRounds::Decision ElasticRounds::died(int id, ElasticDeath death) {
  return change([&](State& state) {
    const auto worker =
        std::ranges::find(state.living, id, &State::LivingWorker::id);
    // The coordinator has given this launcher up, and its workers.
    if (worker == state.living.end()) return Decision{.next = Next::kGoOn};
    death.launcher = worker->launcher;
    Decision decision = decide(state, {id}, true, death);
    if (decision.next != Next::kReplace) return decision;
    decision.replacement = state.add(death.launcher);
    decision.restarts = ++state.restarts;
    decision.start = ++state.starts;
    return decision;
  });
}

ElasticRounds::Decision ElasticRounds::lost(const std::string& launcher,
                                            ElasticDeath death) {
  death.is_launcher = true;
  death.launcher = launcher;
  return change([&](State& state) {
    if (!has(state.lost, launcher)) state.lost.push_back(launcher);
    std::vector<int> dead;
    for (const State::LivingWorker& worker : state.living)
      if (worker.launcher == launcher) dead.push_back(worker.id);
    // It may have decided that the job ends, and not come to report it.
    if (dead.empty())
      return Decision{.next = state.has_failed ? Next::kEndJob : Next::kGoOn};
    return decide(state, dead, false, death);
  });
}

ElasticRounds::Decision ElasticRounds::decide(State& state,
                                              const std::vector<int>& dead,
                                              bool can_replace,
                                              ElasticDeath death) const {
  const auto is_dead = [&](int id) { return has(dead, id); };
  std::erase_if(state.living, [&](const State::LivingWorker& each) {
    return is_dead(each.id);
  });
  std::erase_if(state.ready, is_dead);
  const bool had_part =
      std::ranges::any_of(dead, [&](int id) { return has_state(state, id); });
  if (!had_part && (!state.over.empty() || has_complete_round(state)))
    return {.next = Next::kGoOn};
  const std::vector<int> members = state.round.members;
  const bool can_go_on = std::ranges::any_of(members, [&](int member) {
    return state.is_living(member) && has_state(state, member);
  });
  const bool replace = can_replace && state.restarts < state.max_restarts;
  const bool has_enough =
      replace || std::ssize(state.living) >= state.min_ranks;
  if (state.has_failed || !state.over.empty() || !can_go_on || !has_enough ||
      (had_part && has_stalled()) || (had_part && !fail_rounds(state))) {
    Decision end{.next = Next::kEndJob};
    const bool is_first = !state.has_failed && state.over.empty();
    if (is_first && !can_go_on)
      end.why =
          "no rank is left that has the state of the training; start the job "
          "again, from its last checkpoint";
    else if (is_first && !has_enough)
      end.why = fmt::format(
          "{} of at least {} ranks remain (--min-ranks), and {}",
          state.living.size(), state.min_ranks,
          can_replace ? state.why_none_is_replaced()
                      : "the ranks of a lost host are not replaced");
    state.has_failed = true;
    return end;
  }
  Decision decision{.next = replace ? Next::kReplace : Next::kGoOn};
  // No round follows the death of a replacement that was in none.
  if (std::ranges::any_of(members, is_dead)) {
    death.round = decision.ended_round = state.round.number;
    state.deaths.push_back(std::move(death));
  }
  state.begin_round_if_changed();
  return decision;
}

// The first workers have the state with which the job begins; without a state a
// worker has no part in the job's result.
bool ElasticRounds::has_state(const State& state, int id) const {
  return id < state.first_workers || has_joined(*store_, id, kJobStoreAnswers);
}

// Whether members have given up because another one is stopped or hangs: it
// would be left.
bool ElasticRounds::has_stalled() const {
  return !peek(*store_, kElasticStalled, kJobStoreAnswers).empty();
}

// Records that no round that has begun ends with the training. Returns false if
// the members have ended the training already.
bool ElasticRounds::fail_rounds(State& state) const {
  for (; state.ended < state.round.number; ++state.ended)
    if (end_elastic_round(*store_, state.ended + 1, kRoundFailed,
                          kJobStoreAnswers) == kRoundComplete)
      return false;
  return true;
}

bool ElasticRounds::has_complete_round(const State& state) const {
  for (int number = state.ended + 1; number <= state.round.number; ++number)
    if (how_elastic_round_ended(*store_, number, kJobStoreAnswers) ==
        kRoundComplete)
      return true;
  return false;
}

ElasticRounds::Joined ElasticRounds::join(const std::string& launcher,
                                          int workers) {
  return change([&](State& state) {
    Joined joined;
    if (has(state.lost, launcher)) return joined;
    for (int i = 0; i < workers; ++i) joined.ids.push_back(state.add(launcher));
    joined.start = ++state.starts;
    return joined;
  });
}

bool ElasticRounds::has_workers(const std::string& launcher) const {
  return std::ranges::find(state_->living, launcher,
                           &State::LivingWorker::launcher) !=
         state_->living.end();
}

void ElasticRounds::is_ready(int id) {
  change([&](State& state) {
    if (!state.is_living(id) || !state.over.empty()) return false;
    state.ready.push_back(id);
    state.begin_round_if_changed();
    return true;
  });
}

bool ElasticRounds::ended_well(int id) {
  return change([&](State& state) {
    if (state.over.empty())
      state.over = id < state.first_workers
                       ? fmt::format(
                             "rank {} of the job's start has ended its "
                             "training",
                             id)
                       : "a replacement has ended its training";
    return has_complete_round(state);
  });
}

bool ElasticRounds::has_formed_after(int number) const {
  while (++number <= state_->round.number)
    if (!peek(*store_, elastic_formed_key(number), kJobStoreAnswers).empty())
      return true;
  return false;
}

std::optional<ElasticDeath> ElasticRounds::unsurvived_death() const {
  for (const ElasticDeath& death : state_->deaths)
    if (!death.lost_a_peer && !has_formed_after(death.round)) return death;
  return std::nullopt;
}

}  // namespace lockstep
