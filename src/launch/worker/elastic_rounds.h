// Which workers take part in each round of a job that re-forms in place. See
// docs/design/launch.md.
//
// The decisions are one value in the job's store, which the launchers change by
// compare-and-set: the launcher whose worker has died decides, for all hosts,
// what follows, and the coordinator does where a launcher is lost. The keys
// that workers read follow from the value, and each change first sets those of
// the value before it, so a launcher that ends in the middle leaves nothing
// undone.
//
// Threads: one thread at a time.
// Errors:  those of Store; InvalidArgument where the store holds something
//          else.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/store/store.h"
#include "src/store/elastic_round.h"

namespace lockstep {

// The end of workers with which the job was to go on.
struct ElasticDeath {
  std::string text;  // "rank 3 was killed by signal 9 (SIGKILL)"
  int exit_code = 1;
  // They failed because of another rank, so they are not the cause.
  bool lost_a_peer = false;
  // Of a launcher, with all its workers.
  bool is_launcher = false;
  std::string launcher{};  // of the dead workers; ElasticRounds sets it
  int round = 0;           // the last one that had begun; ElasticRounds sets it

  friend bool operator==(const ElasticDeath&, const ElasticDeath&) = default;
};

class ElasticRounds {
 public:
  struct Options {
    // How many workers each launcher starts, by the launcher's id; their ids
    // are 0, 1, … in this order.
    std::vector<std::pair<std::string, int>> launchers;
    // How many members a round needs.
    int min_ranks = 1;
    int max_restarts = 0;
  };

  // Publishes the first round. One process of the job calls it, once.
  static void begin(Store& store, const Options& options);

  // Takes part in the decisions of a job that has begun.
  explicit ElasticRounds(std::shared_ptr<Store> store);
  ~ElasticRounds();
  ElasticRounds(const ElasticRounds&) = delete;
  ElasticRounds& operator=(const ElasticRounds&) = delete;

  enum class Next { kReplace, kGoOn, kEndJob };
  // What the launcher does about a death.
  struct Decision {
    Next next = Next::kEndJob;
    // With kReplace the id of the worker that the launcher starts now, which
    // replacement of the job it is, and which start of a worker after the first
    // ones, both from 1.
    int replacement = -1;
    int restarts = 0;
    int start = 0;
    // The last round that had begun, if the dead worker was a member of it and
    // the job goes on; else 0.
    int ended_round = 0;
    std::string why{};  // with kEndJob, where the death alone does not say it
  };

  // Worker `id` has failed.
  Decision died(int id, ElasticDeath death);

  // The launcher has ended or cannot be reached, and its workers are dead or
  // end. They are not replaced.
  Decision lost(const std::string& launcher, ElasticDeath death);

  // Workers that the launcher of a further host starts after the first round;
  // none if it was given up meanwhile, by lost().
  struct Joined {
    std::vector<int> ids;
    int start = 0;  // as Decision::start
  };
  Joined join(const std::string& launcher, int workers);

  // Worker `id`, a replacement or one of join(), waits for a round.
  void is_ready(int id);

  // Worker `id` has returned 0: no further round begins. Returns whether the
  // members had ended the training.
  bool ended_well(int id);

  // Reads what other launchers have changed.
  void refresh();

  // Whether the launcher has workers that have not died.
  bool has_workers(const std::string& launcher) const;

  // Whether the group of a round after round `number` has formed: the workers
  // have survived what ended that one.
  bool has_formed_after(int number) const;
  // The first death that was not for want of a peer and after which no group
  // has formed.
  std::optional<ElasticDeath> unsurvived_death() const;

  // As far as this object has seen; refresh() and all changes see more.
  const ElasticRound& round() const;
  const std::vector<ElasticDeath>& deaths() const;
  // Whether a worker has ended well.
  bool is_over() const;

 private:
  struct State;

  template <class Change>
  auto change(Change change);
  void see(const Bytes& value);
  void publish();
  Decision decide(State& state, const std::vector<int>& dead, bool can_replace,
                  ElasticDeath death) const;
  bool has_state(const State& state, int id) const;
  bool has_stalled() const;
  bool fail_rounds(State& state) const;
  bool has_complete_round(const State& state) const;

  const std::shared_ptr<Store> store_;
  Bytes known_;  // the encoded state_
  std::unique_ptr<State> state_;
  int published_ = 0;  // the last round whose key is known to be set
  bool over_published_ = false;
};

}  // namespace lockstep
