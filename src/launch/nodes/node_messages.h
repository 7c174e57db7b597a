// What the launchers of a job's hosts tell each other through the store at
// --rdzv-endpoint: JSON texts, and the keys under which they stand.
//
// A round is one generation of workers on all hosts: round 0 is the first
// start, and each restart begins another. See docs/design/launch.md, "Several
// hosts".
//
// Threads: pure functions.
// Errors:  InvalidArgument for malformed text.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

// What all launchers of a job must agree on.
struct NodesAgreement {
  std::string version;
  std::string job;  // --rdzv-id
  int least = 1;    // hosts
  int most = 1;
  int max_restarts = 0;

  friend bool operator==(const NodesAgreement&,
                         const NodesAgreement&) = default;
};

// A launcher that wants to take part in a round.
struct NodeCard {
  std::string id;    // of the launcher; random
  std::string host;  // for messages
  std::string address;
  int workers = 1;
  int node_rank = -1;             // --node-rank; negative: any
  std::uint16_t master_port = 0;  // free on this host
};

// The hosts of a round, by group rank.
struct RoundPlan {
  std::vector<NodeCard> nodes;
  std::string store_url;  // the workers'
  std::string token;
  int restarts = 0;
};

// Why a round ended early.
struct RoundFault {
  std::string node;  // the launcher's id
  std::string text;  // one line: "rank 3 on host1 exited with code 3"
  int exit_code = 1;
  bool final = false;  // the user asked for the end: no restart
};

// What follows a round.
struct RoundVerdict {
  std::string next;  // "finish", "restart" or "fail"
  RoundFault fault;  // of the last two
};

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(NodesAgreement, version, job, least, most,
                                   max_restarts)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(NodeCard, id, host, address, workers,
                                   node_rank, master_port)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(RoundPlan, nodes, store_url, token, restarts)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(RoundFault, node, text, exit_code, final)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(RoundVerdict, next, fault)

// The agreement of the launcher that came first.
inline constexpr std::string_view kAgreementKey = "nodes/agreement";

// Set once the job is over, for launchers that come later.
inline constexpr std::string_view kOverKey = "nodes/over";

// The store sets it when the launcher's connection ends.
std::string lost_key(std::string_view id);

// The keys of a round.
class RoundKeys {
 public:
  explicit RoundKeys(int round);

  // A number: the launchers that have come.
  std::string arrivals() const { return prefix_ + "arrivals"; }
  // The card of the launcher that came as the `index`-th, from 0.
  std::string card(int index) const;
  std::string plan() const { return prefix_ + "plan"; }
  // Why no plan could be made, a text.
  std::string refusal() const { return prefix_ + "refusal"; }
  std::string fault() const { return prefix_ + "fault"; }
  // Each host's workers have ended, all of them well or not.
  std::string done(int group_rank) const;
  std::string ended(int group_rank) const;
  std::string verdict() const { return prefix_ + "verdict"; }
  // A launcher has read the verdict.
  std::string read(int group_rank) const;

 private:
  std::string prefix_;
};

template <class Message>
std::string encode(const Message& message) {
  return nlohmann::json(message).dump(-1, ' ', false,
                                      nlohmann::json::error_handler_t::replace);
}

// InvalidArgument with the text's first bytes for anything else.
[[noreturn]] void refuse_message(std::string_view text);

template <class Message>
Message decode(std::string_view text) try {
  return nlohmann::json::parse(text).get<Message>();
} catch (const nlohmann::json::exception&) {
  refuse_message(text);
}

}  // namespace lockstep
