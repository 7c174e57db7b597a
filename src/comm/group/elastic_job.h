// A worker's part in a job that re-forms in place: which round it belongs to,
// and whether the launcher has begun a further one.
//
// See docs/design/launch.md, and src/store/elastic_round.h for the keys.
//
// Threads: one thread at a time.
// Errors:  those of Store.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "lockstep/base/deadline.h"
#include "lockstep/store/store.h"
#include "src/store/elastic_round.h"

namespace lockstep {

class ElasticJob {
 public:
  // The id that the launcher gave this process; nothing where its job does not
  // re-form in place. InvalidArgument where it is no number.
  static std::optional<int> id_of_this_process();

  // Tells the launcher that worker `id` waits for a round.
  ElasticJob(int id, std::shared_ptr<Store> store);

  // Waits for a round after the last one of which this worker is a member, and
  // skips those that are followed by another one already. Throws Timeout at the
  // deadline, and Error where no further round follows.
  const ElasticRound& await_round(Deadline deadline);

  // Tells the launcher that the group of the round has formed.
  void formed();

  // Tells the launcher that this worker has the job's state.
  void joined();

  // Ends the round: with the training if `complete`, as far as this worker has
  // seen, or because a member has died. Returns whether the training has ended,
  // which is the same on every member: the first one's word counts, or the
  // launcher's when a member dies.
  bool end_round(bool complete);
  // Whether end_round() has returned true.
  bool is_complete() const { return is_complete_; }

  // Keeps a number for later groups of this process, and returns it.
  void keep(const std::string& name, std::int64_t number) {
    kept_[name] = number;
  }
  std::optional<std::int64_t> kept(const std::string& name) const {
    const auto found = kept_.find(name);
    return found == kept_.end() ? std::nullopt : std::optional(found->second);
  }

  // The round of the last await_round(); 0 before.
  const ElasticRound& round() const { return round_; }
  // This worker's rank in it.
  int rank() const;
  // Whether the launcher has begun a further one.
  bool is_superseded();
  // Whether this worker was a member of the job's first round, and did not
  // replace another one.
  bool is_first_worker();

 private:
  [[noreturn]] void give_up();
  std::optional<ElasticRound> find(int number);
  bool is_member(const ElasticRound& round) const;

  const int id_;
  const std::shared_ptr<Store> store_;
  ElasticRound round_;
  bool has_joined_ = false;
  bool is_complete_ = false;
  int seen_ = 0;  // the newest round that this worker knows
  std::map<std::string, std::int64_t> kept_;
};

// Of the default group's process; null where the job does not re-form in place,
// and before its first init_process_group().
ElasticJob* elastic_job();

}  // namespace lockstep
