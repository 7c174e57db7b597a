#include "src/launch/launcher/elastic_rounds.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "src/launch/worker/own_store.h"
#include "src/store/peek.h"

namespace lockstep {

ElasticRounds::ElasticRounds(std::shared_ptr<Store> store,
                             const Options& options)
    : store_(std::move(store)), options_(options), next_id_(options.workers) {
  std::vector<int> all(static_cast<std::size_t>(options.workers));
  std::iota(all.begin(), all.end(), 0);
  living_.insert(all.begin(), all.end());
  publish(std::move(all));
}

ElasticRounds::Next ElasticRounds::died(int id) {
  living_.erase(id);
  std::erase(ready_, id);
  const bool had_part = has_state(id);
  if (!had_part && (over_ || has_complete_round())) return Next::kGoOn;
  const bool can_go_on =
      std::ranges::any_of(round_.members, [this](int member) {
        return living_.contains(member) && has_state(member);
      });
  if (over_ || !can_go_on || (had_part && !fail_rounds())) return Next::kEndJob;
  const bool replace = restarts_ < options_.max_restarts;
  if (!replace && std::ssize(living_) < options_.min_ranks)
    return Next::kEndJob;
  publish_if_changed();
  return replace ? Next::kReplace : Next::kGoOn;
}

// The first workers have the state with which the job begins.
bool ElasticRounds::has_state(int id) const {
  return id < options_.workers || has_joined(id);
}

// Records that no round that has begun ends with the training. Returns false if
// the members have ended the training already.
bool ElasticRounds::fail_rounds() {
  for (; ended_ < round_.number; ++ended_)
    if (end_elastic_round(*store_, ended_ + 1, kRoundFailed,
                          kOwnStoreAnswers) == kRoundComplete)
      return false;
  return true;
}

bool ElasticRounds::has_complete_round() const {
  for (int number = ended_ + 1; number <= round_.number; ++number)
    if (how_elastic_round_ended(*store_, number, kOwnStoreAnswers) ==
        kRoundComplete)
      return true;
  return false;
}

int ElasticRounds::add() {
  ++restarts_;
  living_.insert(next_id_);
  return next_id_++;
}

void ElasticRounds::is_ready(int id) {
  if (!living_.contains(id) || over_) return;
  ready_.push_back(id);
  publish_if_changed();
}

void ElasticRounds::ended_well(int id) {
  if (std::exchange(over_, true)) return;
  store_->set(kElasticOver,
              to_bytes(id < options_.workers
                           ? fmt::format("rank {} of the job's start has ended "
                                         "its training",
                                         id)
                           : "a replacement has ended its training"),
              kOwnStoreAnswers);
}

bool ElasticRounds::has_formed_after(int number) const {
  while (++number <= round_.number)
    if (!peek(*store_, elastic_formed_key(number), kOwnStoreAnswers).empty())
      return true;
  return false;
}

bool ElasticRounds::has_joined(int id) const {
  return lockstep::has_joined(*store_, id, kOwnStoreAnswers);
}

std::vector<int> ElasticRounds::candidates() const {
  std::vector<int> ids;
  std::ranges::copy_if(round_.members, std::back_inserter(ids),
                       [this](int id) { return living_.contains(id); });
  ids.insert(ids.end(), ready_.begin(), ready_.end());
  return ids;
}

void ElasticRounds::publish_if_changed() {
  std::vector<int> ids = candidates();
  if (ids != round_.members && std::ssize(ids) >= options_.min_ranks)
    publish(std::move(ids));
}

void ElasticRounds::publish(std::vector<int> members) {
  round_ = {.number = round_.number + 1, .members = std::move(members)};
  ready_.clear();
  store_->set(elastic_round_key(round_.number), to_bytes(encode(round_)),
              kOwnStoreAnswers);
}

}  // namespace lockstep
