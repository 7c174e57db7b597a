// The round of a job that re-forms in place: it goes on without the hosts that
// are lost, and takes others in.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "src/launch/nodes/host_round.h"

namespace lockstep {

int HostRound::ranks() const {
  int sum = 0;
  for (const NodeCard& node : nodes_) sum += node.workers;
  return sum;
}

bool HostRound::has_enough_ranks() {
  if (ranks() >= options_.min_ranks) return true;
  const std::string summary =
      fmt::format("--min-ranks is {}, but the hosts that came start {} ranks",
                  options_.min_ranks, ranks());
  refuse_all(summary +
                 "\n  next:    give a smaller number, or more ranks per host "
                 "(-n)",
             summary);
  return false;
}

void HostRound::begin_in_place(const std::string& token) {
  const auto store = open_store(
      url_on_this_host({.host = options_.host, .port = workers_store_->port()}),
      {.token = token, .deadline = kOwnStoreAnswers});
  ElasticRounds::Options rounds{
      .launchers = {},
      .min_ranks = options_.min_ranks > 0 ? options_.min_ranks : ranks(),
      .max_restarts = options_.max_restarts};
  int first_rank = 0;
  int group_rank = 0;
  for (const NodeCard& node : nodes_) {
    rounds.launchers.emplace_back(node.id, node.workers);
    places_[node.id] = {first_rank, group_rank++};
    first_rank += node.workers;
  }
  ElasticRounds::begin(*store, rounds);
  in_place_ = std::make_unique<ElasticRounds>(store);
}

// Takes in the hosts that have come since the job began, as far as --nnodes
// allows, until the training has ended. A host that returns before its loss was
// noticed waits until it is.
void HostRound::admit_spares(std::vector<std::string>& working) {
  in_place_->refresh();
  if (in_place_->is_over()) return;
  for (auto spare = spares_.begin();
       spare != spares_.end() &&
       static_cast<int>(nodes_.size()) < options_.most;) {
    if (with_rank_of(*spare) != nullptr) {
      ++spare;
      continue;
    }
    working.push_back(spare->id);
    admit(*spare);
    spare = spares_.erase(spare);
  }
}

// A launcher whose workers have all died, and not ended the training, leaves
// its place to another one.
bool HostRound::dismiss(const std::string& id) {
  in_place_->refresh();
  if (in_place_->is_over() || in_place_->has_workers(id)) return false;
  std::erase_if(nodes_, [&](const NodeCard& node) { return node.id == id; });
  store_.set(keys_.lost(id), to_bytes("no rank is left there"),
             kOwnStoreAnswers);
  return true;
}

void HostRound::admit(NodeCard node) {
  const std::string key = keys_.late_plan(node.id);
  RoundPlan plan = plan_;
  const Place place{first_free_rank(node.workers), first_free_group_rank()};
  places_[node.id] = place;
  plan.first_rank = place.first_rank;
  plan.group_rank = place.group_rank;
  nodes_.push_back(std::move(node));
  plan.nodes = nodes_;
  store_.set(key, to_bytes(encode(plan)), kOwnStoreAnswers);
}

// So that no two living workers are started with the same rank.
int HostRound::first_free_rank(int workers) const {
  int rank = 0;
  for (bool is_free = false; !is_free;) {
    is_free = true;
    for (const NodeCard& node : nodes_) {
      const int first = places_.at(node.id).first_rank;
      if (rank + workers <= first || first + node.workers <= rank) continue;
      rank = first + node.workers;
      is_free = false;
    }
  }
  return rank;
}

int HostRound::first_free_group_rank() const {
  const auto has = [this](int group_rank) {
    return std::ranges::any_of(nodes_, [&](const NodeCard& node) {
      return places_.at(node.id).group_rank == group_rank;
    });
  };
  int group_rank = 0;
  while (has(group_rank)) ++group_rank;
  return group_rank;
}

bool HostRound::goes_on_without(const NodeCard& node) {
  const auto decision = in_place_->lost(node.id, {.text = loss_of(node)});
  why_it_ends_ = decision.why;
  return decision.next != ElasticRounds::Next::kEndJob;
}

// Workers that only lost a peer may have lost one with whose death the job was
// to go on, but no group has formed since, as in a program without
// elastic::run().
void HostRound::explain(RoundFault& fault) {
  if (fault.is_final || fault.kind != EndKind::kConsequence) return;
  in_place_->refresh();
  const auto death = in_place_->unsurvived_death();
  if (!death) return;
  fault.text = death->text;
  fault.exit_code = death->exit_code;
  fault.node = death->launcher;
}

void HostRound::take_spare() { spares_.push_back(next_card()); }

}  // namespace lockstep
