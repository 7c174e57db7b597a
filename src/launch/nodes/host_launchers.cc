#include "src/launch/nodes/host_launchers.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <sstream>
#include <utility>

#include "lockstep/base/error.h"
#include "src/base/exit_codes.h"
#include "src/base/process_environment.h"
#include "src/base/settings.h"
#include "src/launch/nodes/node_messages.h"
#include "src/launch/output/output_tagger.h"
#include "src/launch/output/terminal_text.h"
#include "src/launch/worker/find_program.h"
#include "src/launch/worker/worker_environment.h"
#include "src/launch/worker/worker_process.h"
#include "src/net/pipe.h"
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
// How often it looks whether the job is over.
constexpr auto kLook = 1s;  // a call of the store
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

// As one word of a shell.
std::string shell_word(const std::string& text) {
  std::string word = "'";
  for (const char letter : text)
    word += letter == '\'' ? "'\\''" : std::string(1, letter);
  return word + "'";
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

std::string address_for(std::span<const TargetHost> hosts) {
  const auto elsewhere = std::ranges::find(hosts, false, &TargetHost::is_here);
  if (elsewhere == hosts.end()) return "127.0.0.1";
  const std::string& name = elsewhere->named.host;
  Settings settings;
  settings.store = std::string(kTcpScheme) +
                   host_and_port(name.substr(name.find('@') + 1), 22);
  settings.world_size = 2;  // not all of them here
  settings.local_world_size = 1;
  return choose_host_address(settings);
}

// The process here that is a host's launcher, or leads to it.
class HostLaunchers::HostLauncher {
 public:
  HostLauncher(const std::string& host, WorkerCommand command, Pipe input,
               std::string order, Screen& screen)
      : host_(host),
        screen_(screen),
        unsent_(std::move(order)),
        input_(std::move(input.write)),
        process_(with_input(std::move(command), input.read),
                 ProgressPipe::kNone),
        out_("",
             [this](std::string_view line) {
               screen_.print_line(OutputStream::kOut, line);
             }),
        err_("", [this](std::string_view line) {
          screen_.print_line(OutputStream::kErr, safe_for_terminal(line));
        }) {
    make_nonblocking(input_);
  }

  const std::string& host() const { return host_; }
  bool has_ended() const { return ended_; }
  // Before the job was over.
  bool was_lost() const { return lost_; }
  void note_lost() { lost_ = true; }
  const ExitStatus& status() const { return process_.last_status(); }

  // Returns whether the process has ended since the last call.
  bool look_for_end() {
    if (ended_ || !process_.exit_status()) return false;
    ended_ = true;
    for (auto* pipe : {&process_.standard_output, &process_.standard_error})
      for (int i = 0; i < kLastReads && read(*pipe); ++i) {
      }
    out_.finish();
    err_.finish();
    input_.reset();
    return true;
  }

  void watch(PollSet& set) {
    if (ended_) return;
    set.watch(process_.end(), POLLIN, [] {});
    if (!unsent_.empty()) set.watch(input_.get(), POLLOUT, [this] { send(); });
    if (screen_.full()) return;
    for (auto* pipe : {&process_.standard_output, &process_.standard_error})
      set.watch(pipe->get(), POLLIN, [this, pipe] { read(*pipe); });
  }

  void signal(int number) { say(fmt::format("{}\n", number)); }
  void kill() { process_.signal_group(SIGKILL); }

 private:
  static constexpr int kLastReads = 64;

  static WorkerCommand with_input(WorkerCommand command,
                                  const FileDescriptor& input) {
    command.standard_input = input.get();
    return command;
  }

  bool read(FileDescriptor& pipe) {
    OutputTagger& tagger = &pipe == &process_.standard_output ? out_ : err_;
    return read_once(pipe, [&](std::string_view bytes) { tagger.add(bytes); });
  }

  void say(const std::string& text) {
    if (!input_) return;
    unsent_ += text;
    send();
  }

  void send() {
    const ssize_t sent = ::write(input_.get(), unsent_.data(), unsent_.size());
    if (sent >= 0)
      unsent_.erase(0, static_cast<std::size_t>(sent));
    else if (errno != EAGAIN && errno != EINTR)
      unsent_.clear();  // it has ended, and says why
  }

  const std::string host_;
  Screen& screen_;
  std::string unsent_;
  FileDescriptor input_;
  WorkerProcess process_;
  OutputTagger out_;
  OutputTagger err_;
  bool ended_ = false;
  bool lost_ = false;
};

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
  const std::string here =
      is_loopback_everywhere(options_.address) ? options_.address : "127.0.0.1";
  store_ =
      open_store(std::string(kTcpScheme) + host_and_port(here, server_->port()),
                 {.token = order.token, .deadline = kOwnStoreAnswers});
  const NodesAgreement agreement{.version = order.version,
                                 .job = options_.job,
                                 .least = order.least,
                                 .most = order.most,
                                 .max_restarts = options_.max_restarts};
  store_->set(kAgreementKey, to_bytes(encode(agreement)), kOwnStoreAnswers);
  coordinator_ = std::make_unique<Coordinator>(
      store_, CoordinatorOptions{.least = order.least,
                                 .most = order.most,
                                 .max_restarts = options_.max_restarts,
                                 .host = options_.address,
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
    if (!here) {
      command.program = find_program(ssh.front(), path);
      command.arguments = ssh;
      command.arguments.insert(
          command.arguments.end(),
          {host.host, shell_word(options_.program) + " " + options_.command});
    }
    hosts_.push_back(std::make_unique<HostLauncher>(
        host.host, std::move(command), make_pipe(), encode_order(order),
        screen_));
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
  const int code = exit_code();
  finish_output();
  look_for_write_error();
  if (screen_.error() == 0) return code;
  return screen_.error() == EPIPE ? 128 + SIGPIPE : kExitFailed;
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
  // Also an ssh that stays when its launcher has ended must end.
  if (kill_at_.is_never() && is_over())
    kill_at_ = Deadline(options_.grace + kEnd);
}

void HostLaunchers::take_signals() {
  for (const int signal : signals_.take()) {
    if (signal == SIGTSTP) tell("a job on several hosts cannot be suspended");
    if (signal != SIGUSR1 && !asks_to_end(signal)) continue;
    for (const auto& host : hosts_) host->signal(signal);
    if (signal == SIGUSR1) continue;
    kill_at_ = std::min(kill_at_, signal_ == 0 ? Deadline(options_.grace + kEnd)
                                               : Deadline(kEndAtOnce));
    signal_ = signal;
  }
}

// The launchers of a job that is over end by themselves.
void HostLaunchers::note_ends() {
  for (const auto& host : hosts_) {
    if (!host->look_for_end()) continue;
    if (is_over() || signal_ != 0)
      kill_at_ = std::min(kill_at_, Deadline(options_.grace + kEnd));
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
  end_all();
}

void HostLaunchers::end_all() {
  if (std::exchange(ends_, true)) return;
  for (const auto& host : hosts_) host->signal(SIGTERM);
  kill_at_ = std::min(kill_at_, Deadline(options_.grace + kEnd));
}

void HostLaunchers::lose(HostLauncher& host) {
  host.note_lost();
  const ExitStatus& status = host.status();
  std::string text = fmt::format("{} is lost to the job: ", host.host());
  if (status.code == kSshFailed)
    text += fmt::format(
        "ssh ended with 255\n  next:    {} {} true must work without a "
        "password or a question: see ssh-copy-id",
        fmt::join(options_.ssh, " "), host.host());
  else if (status.code == kNoSuchProgram)
    text += fmt::format(
        "it has no {}\n  next:    install Lockstep at the same "
        "path on every host",
        options_.program);
  else
    text += "its launcher " + describe(status);
  tell(text);
  const auto left = std::ranges::count_if(
      hosts_, [](const auto& each) { return !each->has_ended(); });
  if (left < options_.order.least) end_all();
}

void HostLaunchers::kill_all() {
  kill_at_ = Deadline::never();
  std::vector<std::string> names;
  for (const auto& host : hosts_) {
    if (host->has_ended()) continue;
    names.push_back(host->host());
    host->kill();
  }
  if (names.empty()) return;
  tell(fmt::format("the launchers on {} do not end; look for processes there",
                   fmt::join(names, ", ")));
}

std::optional<RoundVerdict> HostLaunchers::verdict() const {
  const std::vector<std::string> keys{std::string(kOverKey),
                                      std::string(kAgreementKey)};
  if (store_->wait_any(keys, kOwnStoreAnswers) != 0) return std::nullopt;
  return decode<RoundVerdict>(to_text(store_->get(kOverKey, kOwnStoreAnswers)));
}

bool HostLaunchers::is_over() const { return verdict().has_value(); }

// Whether the ranks of all hosts have saved their state before they ended.
bool HostLaunchers::has_saved() const {
  bool any = false;
  for (const auto& host : hosts_) {
    if (host->was_lost()) continue;
    const int code = host->status().exit_code();
    if (code != 0 && code != kExitStartAgain) return false;
    any |= code == kExitStartAgain;
  }
  return any;
}

// All ranks have ended well, but the way to a host may have failed since, and
// with it the last lines of its ranks.
int HostLaunchers::code_of_a_good_end() {
  int code = 0;
  for (const auto& host : hosts_) {
    if (host->status().ended_well() || host->was_lost()) continue;
    tell(
        fmt::format("the ranks on {} ended well, but its launcher {}: its last "
                    "output may be missing",
                    host->host(), describe(host->status())));
    code = kExitFailed;
  }
  return code;
}

int HostLaunchers::exit_code() {
  const auto end = verdict();
  if (end && end->next == "finish") return code_of_a_good_end();
  if (signal_ != 0) return has_saved() ? kExitStartAgain : 128 + signal_;
  if (end) {
    const int code = end->fault.exit_code;
    if (hosts_.front()->was_lost())  // otherwise its launcher says so
      tell("the job ended on every host: " + end->fault.text);
    return code;
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
