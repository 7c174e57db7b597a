// What the launchers of a job's hosts tell each other through the store at
// --rdzv-endpoint: JSON texts, and the keys under which they stand.
//
// A round is one generation of workers on all hosts: round 0 is the first
// start, and each restart begins another. See docs/design/launch.md, "Several
// hosts".
//
// Errors:  InvalidArgument for malformed text; report_fault() those of Store.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/store/store.h"
#include "src/faults/root_cause.h"

namespace lockstep {

// What all launchers of a job must agree on.
struct NodesAgreement {
  std::string version;
  std::string job;  // --rdzv-id
  int least = 1;    // hosts
  int most = 1;
  int max_restarts = 0;
  int min_ranks = -1;  // see CoordinatorOptions

  friend bool operator==(const NodesAgreement&,
                         const NodesAgreement&) = default;
};

// The program that a host starts: see program_identity.h.
struct ProgramCard {
  std::string host;
  std::string identity;
};

// A launcher that wants to take part in a round.
struct NodeCard {
  std::string id;    // of the launcher; random
  std::string host;  // for messages
  std::string address;
  int workers = 1;
  int node_rank = -1;             // --node-rank; negative: any
  std::uint16_t master_port = 0;  // free on this host
  // How long its workers may take to end, in milliseconds: --grace.
  std::int64_t grace = 0;
};

// The hosts of a round, by group rank.
struct RoundPlan {
  std::vector<NodeCard> nodes;
  std::string store_url;  // the workers'
  std::string token;
  int restarts = 0;
  // Of the host for which the plan is, where it joins a job that re-forms in
  // place and runs already; negative: by the order of the hosts.
  int first_rank = -1;
  int group_rank = -1;
};

// Why a round ended early.
struct RoundFault {
  std::string node = {};  // the launcher's id
  std::string text = {};  // one line: "rank 3 on host1 exited with code 3"
  int exit_code = 1;
  EndKind kind = EndKind::kByItself;
  bool is_of_launcher = false;  // it is gone, with its host or without
  // No restart may follow, as when the user has asked for the end.
  bool is_final = false;
};

// Whether `fault` takes the place of `other`, which was reported before it: it
// is final, or else the likelier cause. Of equals the first one stays, and so
// does the loss of a launcher, after which workers die in any way.
bool replaces(const RoundFault& fault, const RoundFault& other);

// What follows a round.
struct RoundVerdict {
  std::string next;  // "finish", "restart" or "fail"
  RoundFault fault;  // of the last two
  int round = 0;
};

// What another version leaves out, or adds, does not hide its version.
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(NodesAgreement, version, job,
                                                least, most, max_restarts,
                                                min_ranks)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(ProgramCard, host, identity)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(NodeCard, id, host, address, workers,
                                   node_rank, master_port, grace)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(RoundPlan, nodes, store_url, token, restarts,
                                   first_rank, group_rank)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(RoundFault, node, text, exit_code, kind,
                                   is_of_launcher, is_final)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(RoundVerdict, next, fault, round)

// The agreement of the launcher that came first.
inline constexpr std::string_view kAgreementKey = "nodes/agreement";

// The ProgramCard of the first launcher whose program is compared.
inline constexpr std::string_view kProgramKey = "nodes/program";

// The last round's verdict, once the job is over.
inline constexpr std::string_view kOverKey = "nodes/over";

// A RoundFault with which the command that started the launchers ends the job.
inline constexpr std::string_view kEndKey = "nodes/end";

// The launcher of this --node-rank has reached the rendezvous.
std::string came_key(int node_rank);

// The launcher has read how the job ended.
std::string read_key(std::string_view id);

// The keys of a round. Those of one launcher end with its id.
class RoundKeys {
 public:
  explicit RoundKeys(int round);

  // A number: at least so many cards are there.
  std::string cards() const { return prefix_ + "cards"; }
  // The card of the launcher that came as the `index`-th, from 0.
  std::string card(int index) const;
  std::string plan() const { return prefix_ + "plan"; }
  // The plan for a launcher that joins a job which re-forms in place, after the
  // others have begun.
  std::string late_plan(std::string_view id) const;
  // Why the launcher cannot take part, a text.
  std::string refusal(std::string_view id) const;
  std::string fault() const { return prefix_ + "fault"; }
  // The launcher's workers have ended, all of them well or not.
  std::string done(std::string_view id) const;
  std::string ended(std::string_view id) const;
  std::string verdict() const { return prefix_ + "verdict"; }
  // The store sets it when the launcher's connection ends.
  std::string lost(std::string_view id) const;

 private:
  std::string prefix_;
};

template <class Message>
std::string encode(const Message& message) {
  return nlohmann::json(message).dump(-1, ' ', false,
                                      nlohmann::json::error_handler_t::replace);
}

// Sets `key` to `fault`, unless a fault is there that it does not replace.
void report_fault(Store& store, const std::string& key, const RoundFault& fault,
                  Deadline deadline);

// InvalidArgument with the text's first bytes for anything else.
[[noreturn]] void refuse_message(std::string_view text);

template <class Message>
Message decode(std::string_view text) try {
  return nlohmann::json::parse(text).get<Message>();
} catch (const nlohmann::json::exception&) {
  refuse_message(text);
}

}  // namespace lockstep
