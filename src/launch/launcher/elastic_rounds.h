// Which workers take part in each round of a job that re-forms in place; it
// publishes the rounds in the job's store. See docs/design/launch.md.
//
// Threads: one thread at a time.
// Errors:  those of Store.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "lockstep/store/store.h"
#include "src/store/elastic_round.h"

namespace lockstep {

class ElasticRounds {
 public:
  struct Options {
    int workers = 1;  // of the first round, with the ids 0, 1, …
    // How many members a round needs.
    int min_ranks = 1;
    int max_restarts = 0;
  };

  // Publishes the first round.
  ElasticRounds(std::shared_ptr<Store> store, const Options& options);

  // What the launcher does about a death.
  enum class Next { kReplace, kGoOn, kEndJob };

  // Worker `id` has failed. After kReplace the caller starts a process and
  // calls add() before any other method.
  Next died(int id);

  // A replacement has been started; returns its id.
  int add();

  // The replacement `id` waits for a round.
  void is_ready(int id);

  // Worker `id` has returned 0: no further round begins.
  void ended_well(int id);

  // Whether the group of a round after round `number` has formed: the workers
  // have survived what ended that one.
  bool has_formed_after(int number) const;
  // Whether worker `id` has had the job's state. Without that it has no part in
  // the job's result.
  bool has_joined(int id) const;
  // Whether a worker has ended well.
  bool is_over() const { return over_; }

  // The number of replacements so far.
  int restarts() const { return restarts_; }
  // The last one published.
  const ElasticRound& round() const { return round_; }

 private:
  bool has_state(int id) const;
  bool fail_rounds();
  bool has_complete_round() const;
  // The living members, then the replacements that are ready.
  std::vector<int> candidates() const;
  void publish(std::vector<int> members);
  void publish_if_changed();

  const std::shared_ptr<Store> store_;
  const Options options_;
  std::set<int> living_;
  std::vector<int> ready_;  // not members yet
  int ended_ = 0;           // the last round that a death has ended
  ElasticRound round_;
  int next_id_;
  int restarts_ = 0;
  bool over_ = false;
};

}  // namespace lockstep
