// The flags of `lockstep run` about hosts and restarts.
//
// Threads: the main thread.
// Errors:  InvalidArgument for flags that are wrong or contradict each other.
#pragma once

#include <chrono>
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "src/base/settings.h"
#include "src/launch/nodes/host_list.h"
#include "src/launch/nodes/host_order.h"
#include "src/launch/nodes/node.h"

namespace CLI {  // NOLINT(readability-identifier-naming): as CLI11 has it
class App;
}

namespace lockstep {

// The flags about hosts and restarts, with torchrun's names and meaning.
struct NodeFlags {
  std::optional<std::string> nodes;  // N or MIN:MAX [1, or all of -H]
  int node_rank = -1;                // negative: not given
  std::string endpoint;              // HOST or HOST:PORT
  std::string id = "none";
  std::string backend = "c10d";
  std::string configuration;  // KEY=VALUE,…
  std::string master_address;
  std::string local_address;
  int master_port = 0;  // 0: a free one
  int max_restarts = 0;
  bool standalone = false;
  // For a launcher that starts those of the hosts.
  std::string host_list;               // -H
  std::string host_file;               // --hostfile
  std::string ssh = "ssh";             // words of a command
  std::vector<std::string> variables;  // -x
  // By such a launcher; see HostOrder.
  bool is_ordered = false;
};

void add_node_flags(CLI::App& command, NodeFlags& flags);

// The hosts whose launchers this one starts; empty where it starts its own
// workers.
std::vector<HostSlots> hosts_of(const NodeFlags& flags);

struct NodeRange {
  int least = 1;
  int most = 1;
};

// The number of hosts of the job; `named` are those of hosts_of().
NodeRange range_of(const NodeFlags& flags, std::size_t named);

// Replaces what the flags say about hosts by what the order says.
void obey(const HostOrder& order, NodeFlags& flags);

// How long launchers wait for others: --rdzv-conf.
struct JoinTimes {
  std::chrono::nanoseconds join = std::chrono::minutes(10);
  std::chrono::nanoseconds last_call = std::chrono::seconds(30);
};
JoinTimes join_times_of(const NodeFlags& flags);

// Which flags have no effect, as in torchrun: a line each for the user.
std::vector<std::string> ignored_flags(const NodeFlags& flags);

// LOCKSTEP_TOKEN, or ""; InvalidArgument for one that is too long, on every
// host alike: otherwise the launcher that serves refuses it, and the others
// wait.
std::string token_of_hosts(const EnvironmentLookup& lookup);

// What the flags say about a job on several hosts; nothing for one on this host
// alone.
std::optional<NodeOptions> nodes_of(const NodeFlags& flags,
                                    const EnvironmentLookup& lookup);

}  // namespace lockstep
