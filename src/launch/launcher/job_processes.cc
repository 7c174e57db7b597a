#include "src/launch/launcher/job_processes.h"

#include <fmt/format.h>
#include <sys/wait.h>

#include <algorithm>
#include <csignal>
#include <fstream>
#include <iterator>
#include <optional>
#include <string_view>

#include "src/base/number_in.h"
#include "src/base/printable.h"
#include "src/base/report_text.h"

namespace lockstep {
namespace {

// Most processes end sooner, so that their names do not interest a user.
constexpr std::chrono::seconds kQuiet{2};
constexpr std::chrono::seconds kBetweenNotices{10};

// "NAME=value" or arguments, each with a zero byte behind it. Empty where the
// process has ended or belongs to another user.
std::string read_words(pid_t pid, std::string_view file) {
  std::ifstream stream(fmt::format("/proc/{}/{}", pid, file), std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

std::string command_of(pid_t pid) {
  constexpr std::size_t kMostBytes = 60;
  std::string command = read_words(pid, "cmdline");
  while (command.ends_with('\0')) command.pop_back();
  std::ranges::replace(command, '\0', ' ');
  if (command.size() > kMostBytes)
    command.replace(kMostBytes, command.npos, "...");
  return printable(command);
}

// The rank whose variables the process has inherited, where it is one of the
// job with `store_url`.
std::optional<int> inherited_rank(pid_t pid, const std::string& store_url) {
  const std::string words = '\0' + read_words(pid, "environ");
  const auto value_of = [&](const std::string& name) {
    const std::string start = '\0' + name + '=';
    const std::size_t at = words.find(start);
    if (at == words.npos) return std::string();
    const std::size_t value = at + start.size();
    return words.substr(value, words.find('\0', value) - value);
  };
  if (value_of("LOCKSTEP_STORE") != store_url) return std::nullopt;
  return number_in<int>(value_of("RANK"));
}

double seconds_of(std::chrono::steady_clock::duration time) {
  return std::chrono::duration<double>(time).count();
}

}  // namespace

bool JobProcesses::have_ended() const {
  return workers_.ended() && orphans_.living(workers_.pids()).empty();
}

void JobProcesses::ask_to_end() {
  phase_ = Phase::kAsked;
  asked_at_ = std::chrono::steady_clock::now();
  kill_at_ = Deadline(options_.grace);
  notice_at_ = Deadline(kQuiet);
  orphans_.note_asked(workers_.pids());
  workers_.signal_all(SIGTERM);
  workers_.signal_all(SIGCONT);  // a stopped process handles signals only then
  orphans_.ask_to_end(workers_.pids());
}

void JobProcesses::kill() {
  phase_ = Phase::kKilled;
  kill_at_ = notice_at_ = Deadline::never();
  kill_everything();
}

void JobProcesses::kill_everything() const {
  workers_.signal_all(SIGKILL);
  orphans_.kill(workers_.pids());
}

// An orphan that ends may leave others.
void JobProcesses::clear() {
  workers_.clear();
  for (;;) {
    const auto orphans = orphans_.living({});
    if (orphans.empty()) return;
    orphans_.kill({});
    for (const SeenProcess& orphan : orphans) ::waitpid(orphan.pid, nullptr, 0);
  }
}

void JobProcesses::look_for_orphans() {
  if (phase_ == Phase::kAsked)
    orphans_.ask_to_end(workers_.pids());
  else
    orphans_.living(workers_.pids());
}

void JobProcesses::look_for_time() {
  // Processes that were not visible when the others were killed.
  if (phase_ == Phase::kKilled) kill_everything();
  if (phase_ != Phase::kAsked) return;
  const bool is_late = kill_at_.expired();
  if (!is_late && !notice_at_.expired()) return;
  notice_at_ = Deadline(kBetweenNotices);
  look_for_orphans();
  const std::vector<std::string> processes = living();
  const double waited =
      seconds_of(std::chrono::steady_clock::now() - asked_at_);
  if (!processes.empty() && is_late)
    options_.tell(fmt::format("kills {}, {:.1f} s after SIGTERM (--grace)",
                              list_some(processes), waited));
  else if (!processes.empty())
    options_.tell(fmt::format(
        "waits for {} to end: it sent SIGTERM {:.1f} s ago, and "
        "sends SIGKILL in {:.1f} s (--grace), or on Ctrl-C",
        list_some(processes), waited, seconds_of(kill_at_.remaining())));
  if (is_late) kill();
}

std::vector<std::string> JobProcesses::living() const {
  std::vector<std::string> processes;
  for (const auto& worker : workers_.all())
    if (!worker->process().exit_status())
      processes.push_back(fmt::format("rank {} (process {})", worker->rank(),
                                      worker->process().pid()));
  for (const SeenProcess& orphan : orphans_.living(workers_.pids()))
    processes.push_back(describe(orphan));
  return processes;
}

std::string JobProcesses::describe(const SeenProcess& orphan) const {
  auto rank = inherited_rank(orphan.pid, options_.store_url);
  for (const auto& worker : workers_.all())
    if (worker->process().pid() == orphan.session) rank = worker->rank();
  return fmt::format("process {} ({}) that {} left behind", orphan.pid,
                     command_of(orphan.pid),
                     rank ? fmt::format("rank {}", *rank) : "a rank");
}

}  // namespace lockstep
