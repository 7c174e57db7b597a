#include "src/comm/group/elastic_job.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "lockstep/base/error.h"
#include "src/base/number_in.h"
#include "src/base/process_environment.h"
#include "src/comm/rendezvous/formation.h"
#include "src/store/peek.h"

namespace lockstep {

std::optional<int> ElasticJob::id_of_this_process() {
  const auto text = environment_variable(kElasticIdVariable);
  if (!text) return std::nullopt;
  const auto id = number_in<int>(*text);
  if (!id || *id < 0)
    throw InvalidArgument(fmt::format(
        "the environment variable {} is \"{}\"; it must be a number from 0, "
        "and is set by lockstep run --in-place alone",
        kElasticIdVariable, *text));
  return id;
}

ElasticJob::ElasticJob(int id, std::shared_ptr<Store> store)
    : id_(id), store_(std::move(store)) {
  store_->set(elastic_ready_key(id_), to_bytes("ready"), kStoreAnswers);
}

const ElasticRound& ElasticJob::await_round(Deadline deadline) {
  for (;;) {
    const std::array<std::string, 2> either{elastic_round_key(seen_ + 1),
                                            kElasticOver};
    try {
      if (store_->wait_any(either, deadline) == 1)
        throw Error(fmt::format(
            "init_process_group: the ranks do not form another group: {}\n"
            "  next:    read what the launcher has printed about the ranks "
            "that "
            "ended before",
            to_text(store_->get(kElasticOver, kStoreAnswers))));
    } catch (const Timeout&) {
      give_up();
    }
    std::optional<ElasticRound> newest;
    while (auto next = find(seen_ + 1)) {
      ++seen_;
      newest = std::move(next);
    }
    if (newest && is_member(*newest)) return round_ = *std::move(newest);
  }
}

void ElasticJob::give_up() {
  const Timeout error(fmt::format(
      "init_process_group: the launcher has begun no round after round {} for "
      "worker {}\n"
      "  likely:  no process has ended: a rank is slow or stopped, or has left "
      "the group; or a replacement does not call init_process_group()\n"
      "  next:    read the logs of all ranks; LOCKSTEP_RENDEZVOUS_TIMEOUT says "
      "how long to wait",
      seen_, id_));
  // Others may have gone on without this worker, and one without the state may
  // only have waited for a commit.
  if (round_.number > 0 && seen_ == round_.number) try {
      if (has_joined_ || is_first_worker())
        store_->set(kElasticStalled, to_bytes(error.what()), kStoreAnswers);
    } catch (const Error&) {
      // The launcher sees that this worker ends.
    }
  throw error;
}

void ElasticJob::formed() {
  if (rank() == 0)
    store_->set(elastic_formed_key(round_.number), to_bytes("formed"),
                kStoreAnswers);
}

void ElasticJob::joined() {
  if (std::exchange(has_joined_, true)) return;
  store_->set(elastic_joined_key(id_), to_bytes("joined"), kStoreAnswers);
}

bool ElasticJob::end_round(bool complete) {
  is_complete_ = end_elastic_round(*store_, round_.number,
                                   complete ? kRoundComplete : kRoundFailed,
                                   kStoreAnswers) == kRoundComplete;
  return is_complete_;
}

int ElasticJob::rank() const {
  return static_cast<int>(std::ranges::find(round_.members, id_) -
                          round_.members.begin());
}

bool ElasticJob::is_superseded() { return find(round_.number + 1).has_value(); }

bool ElasticJob::is_first_worker() {
  const auto first = find(1);
  return first && is_member(*first);
}

std::optional<ElasticRound> ElasticJob::find(int number) {
  const Bytes value = peek(*store_, elastic_round_key(number), kStoreAnswers);
  if (value.empty()) return std::nullopt;
  return decode_elastic_round(number, to_text(value));
}

bool ElasticJob::is_member(const ElasticRound& round) const {
  return std::ranges::find(round.members, id_) != round.members.end();
}

}  // namespace lockstep
