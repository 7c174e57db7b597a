// Starts the launcher of each host of `lockstep run -H`, over ssh or, where the
// host is this machine, directly; serves their rendezvous; and ends with them.
//
// See docs/design/launch.md, "Hosts over ssh".
//
// Threads: the thread that constructed the SignalWatch.
// Errors:  CannotExecute without ssh; SystemError, NetworkError and
//          InvalidArgument before anything has started. What happens to a host
//          is a line on the screen and an exit code.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "src/launch/nodes/coordinator.h"
#include "src/launch/nodes/host_launcher.h"
#include "src/launch/nodes/host_list.h"
#include "src/launch/nodes/host_order.h"
#include "src/launch/output/screen.h"
#include "src/launch/worker/signal_watch.h"
#include "src/store/tcp_store_server.h"

namespace lockstep {

struct TargetHost {
  HostSlots named;
  bool is_here = false;  // it is this machine, which needs no ssh
};

// Looks the hosts up, which a name server that does not answer can delay by
// some ten seconds each. InvalidArgument where two of them are this machine.
std::vector<TargetHost> locate(std::span<const HostSlots> hosts);

// The address at which all of `hosts` reach this one: of the interface that
// `wanted` names, or is the address of; if empty, of the one that routes to the
// first host that is elsewhere. InvalidArgument where there is no such
// interface.
std::string address_for(std::span<const TargetHost> hosts,
                        const std::string& wanted);

struct HostLaunchersOptions {
  std::vector<TargetHost> hosts;  // in the order of --node-rank
  // The words before a host's name: "ssh", with the user's options.
  std::vector<std::string> ssh = {"ssh"};
  std::string program;  // this one, at the same path on every host
  std::string command;  // the command of `program` that reads an order
  std::string address;  // of this host, as the others reach it
  std::string job;      // --rdzv-id
  HostOrder order;      // but for what differs between hosts
  int max_restarts = 0;
  int min_ranks = -1;  // see CoordinatorOptions
  std::chrono::milliseconds grace{};
  std::chrono::nanoseconds join_timeout{};
  std::chrono::nanoseconds last_call{};
};

class HostLaunchers {
 public:
  // `signals` and `screen` must outlive it.
  HostLaunchers(HostLaunchersOptions options, SignalWatch& signals,
                Screen& screen);
  ~HostLaunchers();
  HostLaunchers(const HostLaunchers&) = delete;
  HostLaunchers& operator=(const HostLaunchers&) = delete;

  // Runs the job to its end and returns its exit code. Call it once.
  int run();

 private:
  void serve();
  void start();
  void turn();
  void take_signals();
  void note_ends();
  void lose(HostLauncher& host);
  void look_at_job();
  void tell_restarts();
  void tell_who_is_missing();
  void look_for_write_error();
  void end_job(const std::string& why);
  void end_within(std::chrono::nanoseconds time);
  void kill_hosts_without_ranks();
  void kill_all();
  int exit_code();
  int code_of_a_good_end();
  bool has_saved() const;
  std::optional<RoundVerdict> verdict(const std::string& key) const;
  bool is_over() const;
  bool has_come(const HostLauncher& host) const;
  std::set<int> hosts_with_ranks() const;
  std::string names_of_waiting() const;
  void tell(const std::string& text);
  void finish_output();

  HostLaunchersOptions options_;
  SignalWatch& signals_;
  Screen& screen_;
  std::unique_ptr<TcpStoreServer> server_;
  std::shared_ptr<Store> store_;
  std::unique_ptr<Coordinator> coordinator_;
  std::vector<std::unique_ptr<HostLauncher>> hosts_;
  int signal_ = 0;             // the user's
  int round_ = 0;              // the restarts before it were told
  bool ends_ = false;          // it has ended the job
  bool write_failed_ = false;  // and the user was told, if possible
  Deadline kill_at_ = Deadline::never();
  Deadline look_at_ = std::chrono::nanoseconds(0);  // at the store
  // When the user is told which hosts have not come, and which do not end.
  Deadline missing_at_ = std::chrono::seconds(5);
  Deadline slow_at_ = Deadline::never();
};

}  // namespace lockstep
