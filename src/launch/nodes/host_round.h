// One generation of workers on the hosts of a job, as the Coordinator sees it:
// which launchers take part, how it ended, and what follows.
//
// Threads: the coordinator's.
// Errors:  those of Store; Cancelled; InvalidArgument for a launcher's message
//          of another version.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "src/launch/nodes/coordinator.h"
#include "src/launch/nodes/node_messages.h"
#include "src/launch/worker/elastic_rounds.h"
#include "src/store/tcp_store_server.h"

namespace lockstep {

// What the loss of its launcher means, in one line.
std::string loss_of(const NodeCard& node);

class HostRound {
 public:
  // What the rounds of a coordinator share, which must outlive them.
  struct Parts {
    Store& store;
    const CoordinatorOptions& options;
    const Cancellation& cancelled;
  };
  // `earlier` took part in the round before, if there was one.
  HostRound(const Parts& parts, int number, std::vector<NodeCard> earlier)
      : store_(parts.store),
        options_(parts.options),
        cancelled_(parts.cancelled),
        number_(number),
        keys_(number),
        earlier_(std::move(earlier)) {}

  // Collects the launchers of this round. Returns false if too few come, after
  // those that came have been refused.
  bool gather();
  // Serves the workers' store and tells the launchers to begin.
  void begin();
  // Waits for the end of the round, and publishes what follows. Returns whether
  // another round does.
  bool end();
  // Collects the launchers that have come already.
  void take_present();
  // Waits until the launchers of this round have read how the job ended.
  void wait_for_readers(Deadline deadline);

  std::vector<NodeCard> take_nodes() { return std::move(nodes_); }

 private:
  // The index of the first of `keys` that is set; nothing if the deadline
  // passes first.
  std::optional<std::size_t> first_of(const std::vector<std::string>& keys,
                                      Deadline deadline) {
    try {
      return store_.wait_any(keys, deadline, &cancelled_);
    } catch (const Timeout&) {
      return std::nullopt;
    }
  }

  std::chrono::nanoseconds patience() const;
  bool wait_for_arrival(Deadline deadline);
  NodeCard next_card();
  void take_arrival();
  const NodeCard* with_rank_of(const NodeCard& card) const;
  bool has_come(const NodeCard& node) const;
  bool is_complete() const;
  bool drop_lost();
  void put_in_order();
  void refuse(const NodeCard& node, const std::string& reason);
  void refuse_all(const std::string& reason, const std::string& summary);
  void refuse_too_few();
  void finish(RoundVerdict verdict);
  bool all_end_well();
  std::optional<RoundFault> end_from_outside();
  const NodeCard* first_that_does_not_end();
  void report_lost(const NodeCard& node);
  void ensure_fault();

  // Those of a job that re-forms in place; see host_round_in_place.cc.
  bool re_forms_in_place() const { return options_.min_ranks >= 0; }
  int ranks() const;
  bool has_enough_ranks();
  void begin_in_place(const std::string& token);
  bool goes_on_without(const NodeCard& node);
  void take_spare();
  void admit_spares(std::vector<std::string>& working);
  void admit(NodeCard node);
  bool dismiss(const std::string& id);
  int first_free_rank(int workers) const;
  int first_free_group_rank() const;
  void explain(RoundFault& fault);

  Store& store_;
  const CoordinatorOptions& options_;
  const Cancellation& cancelled_;
  const int number_;
  const RoundKeys keys_;
  std::vector<NodeCard> earlier_;
  int arrived_ = 0;  // cards that were read
  std::vector<NodeCard> nodes_;
  std::unique_ptr<TcpStoreServer> workers_store_;
  RoundPlan plan_;
  // Where the job re-forms in place.
  std::unique_ptr<ElasticRounds> in_place_;
  std::vector<NodeCard> spares_;  // that would join
  // Of the hosts of nodes_, by launcher: with which rank they start their
  // workers, and which of the hosts they are.
  struct Place {
    int first_rank = 0;
    int group_rank = 0;
  };
  std::map<std::string, Place> places_;
  std::string why_it_ends_;  // with the loss of a host
  std::string ended_early_;  // the last host whose workers have ended
};

}  // namespace lockstep
