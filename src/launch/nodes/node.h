// One host's side of a job on several hosts: its launcher joins each round,
// reports how the round ended here, and learns what follows.
//
// The launchers meet at the store of --rdzv-endpoint. The launcher on that host
// serves it, beside the Coordinator that makes all decisions.
//
// Threads: one thread at a time; a Node has a thread that watches the round.
// Errors:  InvalidArgument where the launchers disagree about the job, and from
//          join() where too few hosts came; RendezvousLost when the launcher
//          that serves the rendezvous is gone; Interrupted when `interrupted`
//          returns true; NetworkError when the rendezvous cannot be reached.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "lockstep/base/error.h"
#include "lockstep/store/store.h"
#include "src/launch/nodes/coordinator.h"
#include "src/launch/nodes/node_messages.h"
#include "src/net/wake_up.h"
#include "src/store/tcp_endpoint.h"
#include "src/store/tcp_store_server.h"

namespace lockstep {

class RendezvousLost : public Error {
 public:
  using Error::Error;
};

// The user asked the launcher to end while it waited.
class Interrupted : public Error {
 public:
  using Error::Error;
};

struct NodeOptions {
  TcpEndpoint endpoint;  // --rdzv-endpoint
  std::string token;     // LOCKSTEP_TOKEN
  NodesAgreement agreement;
  // Empty: the address of the interface that routes to the endpoint.
  std::string local_address = {};
  int node_rank = -1;  // negative: in the order of coming
  int workers = 1;     // on this host
  std::chrono::nanoseconds join_timeout = std::chrono::minutes(10);
  std::chrono::nanoseconds last_call = std::chrono::seconds(30);
};

// This host's part of a round.
struct NodePlace {
  int first_rank = 0;
  int world_size = 1;
  int group_rank = 0;
  int group_world_size = 1;
  std::string master_address;
  std::uint16_t master_port = 0;
  std::string store_url;
  std::string token;
  int restarts = 0;
};

class Node {
 public:
  // Is asked a few times per second while the launcher waits.
  using AskInterrupted = std::function<bool()>;
  // Takes one line for the user.
  using Tell = std::function<void(const std::string&)>;

  // Waits until the launcher that serves the rendezvous has started.
  Node(NodeOptions options, const AskInterrupted& interrupted);
  ~Node();
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  // Waits for the plan of the next round in which this host takes part.
  // `master_port` is free on this host.
  NodePlace join(std::uint16_t master_port, const AskInterrupted& interrupted,
                 const Tell& tell);

  // Readable once the round has ended on another host.
  int ended_elsewhere() const { return ended_elsewhere_.descriptor(); }

  // Ends the round on every host. The first report counts, or the first `final`
  // one, after which no round follows; `text` is one line.
  void report(std::string text, int exit_code, bool final);

  // Says that the workers of this host have ended, and waits until the whole
  // job has, or will start again.
  RoundVerdict finish(bool well, const AskInterrupted& interrupted);

 private:
  void serve_if_here();
  void open(const AskInterrupted& interrupted);
  void agree();
  // Waits until one of `keys` is set; returns its index.
  std::size_t wait_for(const std::vector<std::string>& keys,
                       const AskInterrupted& interrupted);
  template <class Call>
  auto answered(Call call);
  std::string get(const std::string& key);
  void set(const std::string& key, std::string_view value);
  NodePlace place_in(const RoundPlan& plan) const;
  void watch_round();
  void stop_watching();
  [[noreturn]] void lose_rendezvous() const;

  const NodeOptions options_;
  const std::string id_;
  const std::string host_;
  std::unique_ptr<TcpStoreServer> server_;
  std::shared_ptr<Store> store_;
  std::unique_ptr<Coordinator> coordinator_;
  int round_ = -1;
  int group_rank_ = -1;
  WakeUp ended_elsewhere_;
  std::unique_ptr<Cancellation> watch_ends_;
  std::thread watch_;
};

}  // namespace lockstep
