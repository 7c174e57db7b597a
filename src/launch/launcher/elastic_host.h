// This host's workers in a job that re-forms in place: which of them the job
// has replaced or given up, and, with the launchers of the job's other hosts,
// what follows a death. See docs/design/launch.md.
//
// It knows neither processes nor the launcher's loop: the launcher carries out
// what it asks by Calls. Workers are named by their local rank.
//
// Threads: one thread at a time.
// Errors:  those of Store from the constructor; InvalidArgument where the store
//          holds something else, Error where the job goes on without this host.
//          Later the loss of the store is a state, has_lost_store().
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "src/launch/launcher/key_watch.h"
#include "src/launch/record/failure_report.h"
#include "src/launch/worker/elastic_rounds.h"
#include "src/launch/worker/worker_environment.h"
#include "src/net/poll_set.h"

namespace lockstep {

struct ElasticHostOptions {
  JobEnvironment job;
  int min_ranks = 1;
  // This launcher among those of the job's hosts; empty: it is the only one.
  std::string launcher_id{};
};

class ElasticHost {
 public:
  struct Calls {
    std::function<void(const std::string&)> tell;  // the user
    // Starts a worker in the place of the dead one, with the new id() and
    // start(). May throw.
    std::function<void(int local_rank)> start;
    // Asks a worker to end that the job no longer needs.
    std::function<void(int local_rank)> end;
    // The workers or their ranks have changed.
    std::function<void()> changed;
    // Without the store the workers cannot go on after a death.
    std::function<void()> lost_store;
  };

  // Begins the first round, or joins a job that runs. Of several hosts, the
  // coordinator has begun the first round.
  ElasticHost(ElasticHostOptions options, Calls calls);

  int id(int local_rank) const { return slot(local_rank).id; }
  // After how many starts of workers of the job this one was started.
  int start(int local_rank) const { return slot(local_rank).start; }
  // The worker is dead, and the job goes on without it.
  bool is_given_up(int local_rank) const { return slot(local_rank).given_up; }
  bool has_lost_store() const { return lost_store_; }

  // The job's present ranks of this host's workers, by local rank; -1 for one
  // that is no member. And how many ranks the job has.
  std::vector<int> ranks() const;
  int world_size() const;

  // Waits for changes that other launchers make, and for replacements that are
  // ready.
  void watch(PollSet& set);

  // The worker has failed. Whether the job goes on without it, or with another
  // one in its place.
  bool goes_on_without(int local_rank, const WorkerFailure& failure);
  // The worker has returned 0.
  void note_good_end(int local_rank);

  // The first death after which the others formed no group, or null.
  const WorkerFailure* unsurvived_death() const;
  // Tells the user why the others could not go on.
  void tell_of_early_end() const;

 private:
  struct Slot {
    int id = 0;                         // of its worker
    int start = 0;                      // see start()
    bool given_up = false;              // see is_given_up()
    std::unique_ptr<KeyWatch> watch{};  // until it is ready
  };
  // A death with which the job was to go on.
  struct Death {
    int round;  // the last one that had begun
    WorkerFailure failure;
  };

  const Slot& slot(int local_rank) const {
    return slots_[static_cast<std::size_t>(local_rank)];
  }
  Slot& slot(int local_rank) {
    return slots_[static_cast<std::size_t>(local_rank)];
  }
  template <class Call>
  void with_rounds(Call call);
  void lose_store(const std::exception& error);
  void watch_for_ready(Slot& slot);
  void watch_other_launchers();
  void note_changes();
  void tell_of_lost_launchers();
  void note_ready(int id);
  void end_late_replacements();
  bool decide_about(int local_rank, const WorkerFailure& failure);
  bool replace(int local_rank, const ElasticRounds::Decision& decision);
  void tell_of_death(const WorkerFailure& failure,
                     const ElasticRounds::Decision& decision);

  const ElasticHostOptions options_;
  const Calls calls_;
  std::unique_ptr<ElasticRounds> rounds_;
  std::vector<Slot> slots_;            // by local rank
  std::unique_ptr<KeyWatch> changes_;  // that other launchers make
  std::size_t seen_deaths_ = 0;        // of rounds_
  // The worker that ended well before the training, which no further round
  // follows; negative: none.
  int early_end_ = -1;
  std::vector<Death> deaths_;  // in their order
  bool lost_store_ = false;
};

}  // namespace lockstep
