// Decides who takes part in each round of a job on several hosts, and what
// follows it.
//
// One launcher of the job runs it, beside the store of the rendezvous; that
// launcher's own workers take part like those of any other host. A thread
// collects the cards of the launchers that come, publishes the plan of the
// round, and waits until every host's workers have ended well, or until one
// host reports a fault or its launcher is gone; then it publishes the verdict.
//
// Threads: construct and destroy it in one thread; it has one of its own.
// Errors:  an error in its thread becomes a verdict or a refusal that every
//          launcher reads.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/store/store.h"
#include "src/launch/nodes/node_messages.h"
#include "src/launch/worker/own_store.h"
#include "src/net/file_descriptor.h"
#include "src/store/tcp_endpoint.h"

namespace lockstep {

class HostRound;

struct CoordinatorOptions {
  int least = 1;  // hosts
  int most = 1;
  int max_restarts = 0;
  // Where the job re-forms in place: how many ranks a group needs, 0 for all of
  // the first round; then max_restarts is the number of workers that may be
  // replaced. Negative: a fault ends the workers of all hosts.
  int min_ranks = -1;
  // The host at which workers reach their store, as launchers reach this one.
  std::string host = "127.0.0.1";
  // What users should do where too few hosts come.
  std::string advice =
      "start lockstep run on the other hosts too, with the same "
      "--rdzv-endpoint and --rdzv-id";
  // How long to wait for the least number of hosts, and then for more.
  std::chrono::nanoseconds join_timeout = std::chrono::minutes(10);
  std::chrono::nanoseconds last_call = std::chrono::seconds(30);
  // How long workers may take to end after the grace that their host gives
  // them; in a restart, how long their launcher may then take to come.
  std::chrono::nanoseconds end_timeout = std::chrono::seconds(30);
};

// Whether `key` is set. Does not wait: the agreement, which the call names too,
// is there since the first launcher came.
bool is_set(Store& store, const std::string& key);

// A socket of this host, which others reach at `endpoint`.
FileDescriptor listen_for_hosts(const TcpEndpoint& endpoint);

// The store behind it, for this process: not through an address that may lead
// through another host.
std::string url_on_this_host(const TcpEndpoint& endpoint);

class Coordinator {
 public:
  // `store` is a client of the rendezvous.
  Coordinator(std::shared_ptr<Store> store, CoordinatorOptions options);
  // Waits for a moment until the launchers have read how the job ended.
  ~Coordinator();
  Coordinator(const Coordinator&) = delete;
  Coordinator& operator=(const Coordinator&) = delete;

 private:
  void run();
  void part(HostRound& last, int number);
  // Publishes that round `number` cannot go on.
  void give_up(int number, const std::string& reason) noexcept;

  const std::shared_ptr<Store> store_;
  const CoordinatorOptions options_;
  Cancellation cancelled_;
  std::thread thread_;  // last: it uses the members above
};

}  // namespace lockstep
