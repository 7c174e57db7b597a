#include "src/launch/nodes/host_launchers.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <sstream>
#include <utility>

#include "lockstep/base/error.h"
#include "src/base/exit_codes.h"
#include "src/base/process_environment.h"
#include "src/base/report_text.h"
#include "src/base/settings.h"
#include "src/base/shell_word.h"
#include "src/launch/nodes/node_messages.h"
#include "src/launch/output/terminal_text.h"
#include "src/launch/worker/find_program.h"
#include "src/launch/worker/worker_environment.h"
#include "src/launch/worker/worker_process.h"
#include "src/net/poll_set.h"
#include "src/net/socket_address.h"
#include "src/store/host_address.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;

// How long launchers may take to end after the grace of their workers.
constexpr auto kEnd = 60s;
// After the user's second signal.
constexpr auto kEndAtOnce = 10s;
// How often it looks at the store, whether the job is over.
constexpr auto kLook = 1s;
// After this time it tells the user which hosts do not end.
constexpr auto kSlow = 5s;
constexpr int kSshFailed = 255;
constexpr int kNoSuchProgram = 127;

// A loopback address, a name of this machine, or one of its addresses.
bool is_here(const std::string& host) {
  if (host.find('@') != std::string::npos) return false;
  if (is_loopback_everywhere(host)) return true;
  try {
    return has_one_of(resolve(host, 0));
  } catch (const NetworkError&) {
    return false;  // ssh may know it under this name
  }
}

// ssh never asks, and notices that its host is gone. Another program, such as
// a wrapper, decides for itself.
std::vector<std::string> with_options(std::vector<std::string> ssh) {
  if (std::filesystem::path(ssh.front()).filename() != "ssh") return ssh;
  for (const char* option : {"BatchMode=yes", "LogLevel=ERROR",
                             "ConnectTimeout=30", "ServerAliveInterval=15",
                             "ServerAliveCountMax=4", "RemoteCommand=none"})
    ssh.insert(ssh.end(), {"-o", option});
  // A terminal would show the order, with its token.
  ssh.emplace_back("-T");
  return ssh;
}

}  // namespace

std::vector<TargetHost> locate(std::span<const HostSlots> hosts) {
  std::vector<TargetHost> targets;
  const TargetHost* here = nullptr;
  targets.reserve(hosts.size());
  for (const HostSlots& host : hosts) {
    targets.push_back({.named = host, .is_here = is_here(host.host)});
    if (!targets.back().is_here) continue;
    if (here != nullptr)
      throw InvalidArgument(fmt::format(
          "{} and {} are both this machine: name it once, with the sum of its "
          "ranks",
          here->named.host, host.host));
    here = &targets.back();
  }
  return targets;
}

std::string address_for(std::span<const TargetHost> hosts,
                        const std::string& wanted) {
  const auto elsewhere = std::ranges::find(hosts, false, &TargetHost::is_here);
  if (elsewhere == hosts.end()) return "127.0.0.1";
  const std::string& name = elsewhere->named.host;
  Settings settings;
  settings.interface = wanted;
  settings.store = std::string(kTcpScheme) +
                   host_and_port(name.substr(name.find('@') + 1), 22);
  settings.world_size = 2;  // not all of them here
  settings.local_world_size = 1;
  return choose_host_address(settings);
}

HostLaunchers::HostLaunchers(HostLaunchersOptions options, SignalWatch& signals,
                             Screen& screen)
    : options_(std::move(options)), signals_(signals), screen_(screen) {
  serve();
  start();
}

HostLaunchers::~HostLaunchers() = default;

void HostLaunchers::serve() {
  HostOrder& order = options_.order;
  server_ = std::make_unique<TcpStoreServer>(
      listen_for_hosts({.host = options_.address, .port = 0}), order.token);
  order.endpoint = host_and_port(options_.address, server_->port());
  store_ = open_store(
      url_on_this_host({.host = options_.address, .port = server_->port()}),
      {.token = order.token, .deadline = kOwnStoreAnswers});
  const NodesAgreement agreement{.version = order.version,
                                 .job = options_.job,
                                 .least = order.least,
                                 .most = order.most,
                                 .max_restarts = options_.max_restarts,
                                 .min_ranks = options_.min_ranks};
  store_->set(kAgreementKey, to_bytes(encode(agreement)), kOwnStoreAnswers);
  coordinator_ = std::make_unique<Coordinator>(
      store_,
      CoordinatorOptions{
          .least = order.least,
          .most = order.most,
          .max_restarts = options_.max_restarts,
          .min_ranks = options_.min_ranks,
          .host = options_.address,
          .advice = fmt::format("{} HOST must start a launcher on each "
                                "host, which must reach {}: see "
                                "--local-addr, and the ports that a "
                                "firewall may block",
                                fmt::join(options_.ssh, " "), order.endpoint),
          .join_timeout = options_.join_timeout,
          .last_call = options_.last_call});
}

void HostLaunchers::start() {
  const auto ssh = with_options(options_.ssh);
  const std::string path = environment_variable("PATH").value_or("");
  for (int rank = 0; const auto& [host, here] : options_.hosts) {
    HostOrder order = options_.order;
    order.host = host.host;
    order.node_rank = rank++;
    order.slots = host.slots;
    WorkerCommand command{.program = options_.program,
                          .arguments = {options_.program, options_.command},
                          .environment = current_environment(),
                          .signal_mask = signals_.original_mask()};
    // At the end of its input it ends its ranks, and what they started.
    if (here) command.death_signal = 0;
    if (!here) {
      command.program = find_program(ssh.front(), path);
      command.arguments = ssh;
      command.arguments.insert(
          command.arguments.end(),
          {host.host, shell_word(options_.program) + " " + options_.command});
    }
    hosts_.push_back(std::make_unique<HostLauncher>(
        order, options_.hosts.size() == 1, std::move(command), screen_));
  }
}

int HostLaunchers::run() {
  while (!std::ranges::all_of(
      hosts_, [](const auto& host) { return host->has_ended(); })) {
    turn();
    note_ends();
    look_for_write_error();
    if (kill_at_.expired()) kill_all();
  }
  int code = exit_code();
  finish_output();
  look_for_write_error();
  if (code == 0 && screen_.error() != 0)
    code = screen_.error() == EPIPE ? 128 + SIGPIPE : kExitFailed;
  return code;
}

void HostLaunchers::turn() {
  PollSet set;
  set.watch(signals_.descriptor(), POLLIN, [this] { take_signals(); });
  for (const auto& host : hosts_) host->watch(set);
  screen_.watch(set);
  set.wait(std::min({kill_at_, screen_.due(), look_at_}));
  screen_.draw();
  if (!look_at_.expired()) return;
  look_at_ = Deadline(kLook);
  look_at_job();
}

void HostLaunchers::look_at_job() {
  tell_restarts();
  tell_who_is_missing();
  if (slow_at_.expired()) {
    slow_at_ = Deadline::never();
    tell(
        fmt::format("waits for the launchers on {} to end; a second "
                    "Ctrl-C ends their ssh",
                    names_of_waiting()));
  }
  if (!is_over()) return;
  kill_hosts_without_ranks();
  // Also an ssh that stays when its launcher has ended must end.
  end_within(options_.grace + kEnd);
}

// No launcher of a host speaks for the job: each may be lost.
void HostLaunchers::tell_restarts() {
  for (;; ++round_) {
    const auto end = verdict(RoundKeys(round_).verdict());
    if (!end || end->next != "restart") return;
    tell(fmt::format("starts the workers again (restart {} of {}): {}",
                     round_ + 1, options_.max_restarts, end->fault.text));
  }
}

void HostLaunchers::tell_who_is_missing() {
  if (!missing_at_.expired()) return;
  missing_at_ = Deadline::never();
  std::vector<std::string> names;
  for (const auto& host : hosts_)
    if (!host->has_ended() && !has_come(*host)) names.push_back(host->host());
  if (!names.empty() && !is_over())
    tell(
        fmt::format("waits for {}: ssh has not started a launcher there yet, "
                    "or it does not reach {} (see --local-addr)",
                    list_some(names), options_.order.endpoint));
}

void HostLaunchers::end_within(std::chrono::nanoseconds time) {
  if (kill_at_.is_never()) slow_at_ = Deadline(kSlow);
  kill_at_ = std::min(kill_at_, Deadline(time));
}

// A host that took no part when the job ended, or has not come when the user
// asks for the end, has nothing to finish.
void HostLaunchers::kill_hosts_without_ranks() {
  const std::set<int> with_ranks = hosts_with_ranks();
  for (const auto& host : hosts_)
    if (!host->has_ended() && !host->was_dropped() &&
        !with_ranks.contains(host->rank()))
      host->drop();
}

void HostLaunchers::take_signals() {
  for (const int signal : signals_.take()) {
    if (signal == SIGTSTP) tell("a job on several hosts cannot be suspended");
    if (signal != SIGUSR1 && !asks_to_end(signal)) continue;
    for (const auto& host : hosts_)
      // A launcher that has only begun does not handle it yet.
      if (signal != SIGUSR1 || has_come(*host)) host->signal(signal);
    if (signal == SIGUSR1) continue;
    if (signal_ == 0) {
      for (const auto& host : hosts_)
        if (!host->has_ended() && !has_come(*host)) host->drop();
      end_within(options_.grace + kEnd);
      signal_ = signal;
    } else if (is_from_terminal(signal)) {
      end_within(kEndAtOnce);
    }
  }
}

// The launchers of a job that is over end by themselves.
void HostLaunchers::note_ends() {
  for (const auto& host : hosts_) {
    if (!host->look_for_end()) continue;
    if (is_over() || signal_ != 0 || ends_)
      end_within(options_.grace + kEnd);
    else
      lose(*host);
  }
}

// Without a reader the job ends like a program in a pipe; any other error means
// that output is lost.
void HostLaunchers::look_for_write_error() {
  const int error = screen_.error();
  if (error == 0 || std::exchange(write_failed_, true)) return;
  if (error != EPIPE)
    tell(fmt::format("output cannot be written ({}); ending the job",
                     std::strerror(error)));
  end_job("its output cannot be written");
}

// Through the coordinator, so that every launcher learns why; a signal would
// look like the user's.
void HostLaunchers::end_job(const std::string& why) {
  if (std::exchange(ends_, true)) return;
  const RoundFault fault{.text = why, .is_final = true};
  store_->set(kEndKey, to_bytes(encode(fault)), kOwnStoreAnswers);
  end_within(options_.grace + kEnd);
}

void HostLaunchers::lose(HostLauncher& host) {
  host.note_lost();
  const ExitStatus& status = host.status();
  std::string text = fmt::format("{} is lost to the job: ", host.host());
  const std::string cause =
      has_come(host)
          ? fmt::format("its launcher, or the connection to it, {}",
                        describe(status))
          : fmt::format("{} {}", options_.ssh.front(), describe(status));
  text += cause;
  if (has_come(host))
    text +=
        "\n  next:    see the messages above, and dmesg there: the kernel "
        "may have killed it because memory ran out";
  else if (status.code == kSshFailed)
    text += fmt::format(
        "\n  next:    see its message above; {} {} true must work without a "
        "password or a question (ssh-copy-id)",
        fmt::join(options_.ssh, " "), host.host());
  else if (status.code == kNoSuchProgram)
    text += fmt::format(
        "\n  next:    install Lockstep as {} on every host, and check the "
        "commands that --ssh names",
        options_.program);
  tell(text);
  const auto left = std::ranges::count_if(
      hosts_, [](const auto& each) { return !each->has_ended(); });
  // Else the coordinator decides, by the number of ranks.
  const bool decides_by_ranks =
      options_.min_ranks >= 0 && is_set(*store_, RoundKeys(0).plan());
  if (!decides_by_ranks && left < options_.order.least)
    end_job(fmt::format("{} is lost: {}", host.host(), cause));
}

std::string HostLaunchers::names_of_waiting() const {
  std::vector<std::string> names;
  for (const auto& host : hosts_)
    if (!host->has_ended()) names.push_back(host->host());
  return list_some(names);
}

void HostLaunchers::kill_all() {
  kill_at_ = Deadline::never();
  const std::string names = names_of_waiting();
  for (const auto& host : hosts_)
    if (!host->has_ended()) host->kill();
  if (!names.empty())
    tell(fmt::format("the launchers on {} do not end; look for processes there",
                     names));
}

std::optional<RoundVerdict> HostLaunchers::verdict(
    const std::string& key) const {
  if (!is_set(*store_, key)) return std::nullopt;
  return decode<RoundVerdict>(to_text(store_->get(key, kOwnStoreAnswers)));
}

bool HostLaunchers::is_over() const {
  return is_set(*store_, std::string(kOverKey));
}

bool HostLaunchers::has_come(const HostLauncher& host) const {
  return is_set(*store_, came_key(host.rank()));
}

// The --node-rank of the hosts with ranks in the last round of a job that is
// over. Hosts that came to a round that never began have a message to print.
std::set<int> HostLaunchers::hosts_with_ranks() const {
  std::set<int> hosts;
  const std::string key =
      RoundKeys(verdict(std::string(kOverKey)).value().round).plan();
  // In place, others have joined since.
  if (options_.min_ranks >= 0 || !is_set(*store_, key)) {
    for (const auto& host : hosts_)
      if (has_come(*host)) hosts.insert(host->rank());
    return hosts;
  }
  const auto plan =
      decode<RoundPlan>(to_text(store_->get(key, kOwnStoreAnswers)));
  for (const NodeCard& node : plan.nodes) hosts.insert(node.node_rank);
  return hosts;
}

// Whether the ranks of all hosts have saved their state before they ended.
bool HostLaunchers::has_saved() const {
  bool any = false;
  for (const auto& host : hosts_) {
    if (host->was_lost() || host->was_dropped()) continue;
    const int code = host->status().exit_code();
    if (code != 0 && code != kExitStartAgain) return false;
    any |= code == kExitStartAgain;
  }
  return any;
}

// All ranks have ended well, but the way to a host may have failed since, and
// with it the last lines of its ranks.
int HostLaunchers::code_of_a_good_end() {
  const std::set<int> with_ranks = hosts_with_ranks();
  int code = 0;
  for (const auto& host : hosts_) {
    const bool did_without = options_.min_ranks >= 0 && host->was_lost();
    if (host->status().ended_well() || did_without ||
        !with_ranks.contains(host->rank()))
      continue;
    tell(
        fmt::format("the ranks on {} ended well, but its launcher {}: its last "
                    "output may be missing",
                    host->host(), describe(host->status())));
    code = kExitFailed;
  }
  return code;
}

int HostLaunchers::exit_code() {
  tell_restarts();
  const auto end = verdict(std::string(kOverKey));
  if (end && end->next == "finish") return code_of_a_good_end();
  if (signal_ != 0) return has_saved() ? kExitStartAgain : 128 + signal_;
  if (end) {
    tell("the job ended on every host: " + end->fault.text);
    return end->fault.exit_code;
  }
  const auto failed = std::ranges::find_if(hosts_, [](const auto& host) {
    const int code = host->status().exit_code();
    return code != 0 && code != kSshFailed && code != 128 + SIGTERM;
  });
  return failed == hosts_.end() ? kExitFailed : (*failed)->status().exit_code();
}

void HostLaunchers::tell(const std::string& text) {
  screen_.settle();
  std::istringstream lines("lockstep: " + text);
  for (std::string line; std::getline(lines, line);)
    screen_.print_line(OutputStream::kErr, safe_for_terminal(line));
}

// Waits for a reader that pauses, until the user sends another signal.
void HostLaunchers::finish_output() {
  screen_.settle();
  for (bool tired = false; !tired && screen_.error() == 0;) {
    screen_.draw();
    if (screen_.drained()) return;
    PollSet set;
    set.watch(signals_.descriptor(), POLLIN,
              [&] { tired = !signals_.take().empty(); });
    screen_.watch(set);
    set.wait(Deadline::never());
  }
}

}  // namespace lockstep
