// One host's side of a job on several hosts: its launcher joins each round,
// reports how the round ended here, and learns what follows.
//
// The launchers meet at the store of --rdzv-endpoint. The launcher on that host
// serves it, beside the Coordinator that makes all decisions.
//
// Threads: one thread at a time; a Node has a thread that watches the round.
// Errors:  InvalidArgument where the launchers disagree about the job, and from
//          join() where too few hosts came; RendezvousLost when the launcher
//          that serves the rendezvous is gone, or has not answered for 60 s;
//          Interrupted when the user's signal comes; NetworkError when the
//          rendezvous refuses this launcher or its host's name stays unknown,
//          Timeout when it cannot be reached.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/store/store.h"
#include "src/launch/nodes/coordinator.h"
#include "src/launch/nodes/node_messages.h"
#include "src/launch/worker/worker_environment.h"
#include "src/net/socket_address.h"
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

// A job that re-forms in place goes on without this host.
class LeftOut : public Error {
 public:
  using Error::Error;
};

// The job ended before this launcher, ordered by `lockstep run -H`, came.
class JobIsOver : public Error {
 public:
  using Error::Error;
};

struct NodeOptions {
  TcpEndpoint endpoint;  // --rdzv-endpoint
  std::string token;     // LOCKSTEP_TOKEN
  NodesAgreement agreement;
  // What started this launcher, for a shell: an error gives it to the user.
  std::string command_line = {};
  // Empty: the address of the interface that routes to the endpoint.
  std::string local_address = {};
  int node_rank = -1;  // negative: in the order of coming
  // By `lockstep run -H`, which serves the rendezvous and reports restarts and
  // the end.
  bool is_ordered = false;
  // Whether the connection to that command has ended, so that the signal with
  // which this launcher ends is not the user's. Null: never.
  std::function<bool()> is_cut_off = {};
  std::vector<std::string> command = {};  // which hosts compare
  int workers = 1;                        // on this host
  std::chrono::milliseconds grace{};      // --grace
  std::chrono::nanoseconds join_timeout = std::chrono::minutes(10);
  std::chrono::nanoseconds last_call = std::chrono::seconds(30);
  // How long the endpoint's name may be unknown, as while its host starts.
  std::chrono::nanoseconds name_timeout = std::chrono::minutes(1);
};

// Where a launcher asks and tells its user.
struct NodeUser {
  // The signal that asked the launcher to end, or 0. A waiting launcher calls
  // it a few times per second.
  std::function<int()> ending_signal;
  // Takes one line.
  std::function<void(const std::string&)> tell;
};

class Node {
 public:
  // Waits until the launcher that serves the rendezvous has started.
  Node(NodeOptions options, NodeUser user);
  ~Node();
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  const std::string& id() const { return id_; }

  // Waits for the next round in which this host takes part, and fills in this
  // host's part of it; `job.master_port` is free on this host. Returns the
  // last verdict instead where the job ends without this host.
  std::optional<RoundVerdict> join(JobEnvironment& job);

  // Readable once the round has ended on another host.
  int ended_elsewhere() const { return ended_elsewhere_.descriptor(); }

  // Throws RendezvousLost: the store of the job does not answer this launcher,
  // whose host is then lost to a job that re-forms in place.
  [[noreturn]] void lose_rendezvous() const;

  // Ends the round on every host, unless a fault was reported that this one
  // does not replace. Sets its `node`.
  void report(RoundFault fault);
  // That this launcher's user ends the job.
  void report_signal(int signal, int exit_code);

  // Says that the workers of this host have ended, and waits until the whole
  // job has, or will start again. LeftOut where a job that re-forms in place
  // goes on without this host.
  RoundVerdict finish(bool well);

 private:
  void open();
  [[noreturn]] void fail_to_open(const std::string& obstacle) const;
  std::shared_ptr<Store> try_to_open(std::string& obstacle);
  std::vector<SocketAddress> addresses();
  void serve_if_here(bool is_here);
  void agree();
  void agree_on_program();
  void come(const RoundKeys& keys, std::uint16_t master_port);
  // Waits until one of `keys` is set; returns its index. Tells the user
  // `notice` after `quiet`.
  std::size_t wait_for(const std::vector<std::string>& keys,
                       const std::string& notice, Deadline quiet);
  template <class Call>
  auto answered(Call call);
  std::string get(const std::string& key);
  void set(const std::string& key, std::string_view value);
  void confirm_end();
  bool take_part_in(const RoundPlan& plan, JobEnvironment& job) const;
  void watch_round();
  void stop_watching();
  void publish_fault(Deadline deadline);
  bool re_forms_in_place() const { return options_.agreement.min_ranks >= 0; }
  bool may_be_left_out() const;
  std::string place() const;

  const NodeOptions options_;
  const NodeUser user_;
  const std::string id_;
  const std::string host_;
  std::string address_;
  std::unique_ptr<TcpStoreServer> server_;
  std::shared_ptr<Store> store_;
  std::optional<Deadline> refused_until_;
  std::optional<Deadline> unknown_until_;  // since the name is not known
  std::unique_ptr<Coordinator> coordinator_;
  int round_ = -1;
  std::optional<RoundFault> fault_;  // that this launcher reports
  WakeUp ended_elsewhere_;
  std::unique_ptr<Cancellation> watch_ends_;
  std::thread watch_;
};

}  // namespace lockstep
