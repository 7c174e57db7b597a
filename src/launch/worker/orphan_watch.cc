#include "src/launch/worker/orphan_watch.h"

#include <dirent.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <csignal>
#include <fstream>
#include <memory>
#include <optional>
#include <sstream>
#include <string>

namespace lockstep {
namespace {

// Reads /proc/PID/stat after the program's name, which may contain brackets and
// blanks. Nothing if the process is gone.
std::optional<SeenProcess> read_process(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string line;
  std::getline(file, line);
  const std::size_t bracket = line.rfind(')');
  if (bracket == std::string::npos) return std::nullopt;
  std::istringstream fields(line.substr(bracket + 1));
  SeenProcess seen{.pid = pid};
  std::string skipped;
  fields >> skipped >> seen.parent >> seen.group >> seen.session;
  constexpr int kUntilStart = 15;  // from tty_nr to itrealvalue, see proc(5)
  for (int i = 0; i < kUntilStart; ++i) fields >> skipped;
  fields >> seen.began;
  return fields ? std::optional(seen) : std::nullopt;
}

std::vector<SeenProcess> all_processes() {
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(::opendir("/proc"),
                                                   &::closedir);
  std::vector<SeenProcess> found;
  if (!folder) return found;
  while (const dirent* entry = ::readdir(folder.get())) {
    const std::string name = entry->d_name;
    pid_t pid = 0;
    const auto [stop, error] =
        std::from_chars(name.data(), name.data() + name.size(), pid);
    if (error != std::errc() || *stop != '\0') continue;
    if (const auto seen = read_process(pid)) found.push_back(*seen);
  }
  return found;
}

std::vector<SeenProcess> children() {
  std::vector<SeenProcess> processes = all_processes();
  std::erase_if(processes, [self = ::getpid()](const SeenProcess& process) {
    return process.parent != self;
  });
  return processes;
}

bool contains(std::span<const pid_t> pids, pid_t pid) {
  return std::ranges::find(pids, pid) != pids.end();
}

// 0, 1 and -1 mean other processes to kill().
pid_t group_target(const SeenProcess& process) {
  return process.group > 1 ? -process.group : process.pid;
}

}  // namespace

OrphanWatch::OrphanWatch() {
  for (const SeenProcess& child : children())
    children_before_.push_back(child.pid);
  ::prctl(PR_GET_CHILD_SUBREAPER, &was_subreaper_);
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
}

OrphanWatch::~OrphanWatch() { ::prctl(PR_SET_CHILD_SUBREAPER, was_subreaper_); }

std::vector<SeenProcess> OrphanWatch::living(
    std::span<const pid_t> workers) const {
  // Each worker leads a session, which its descendants can leave only for new
  // ones. So a child in this process's session comes from an earlier child.
  const pid_t own_session = ::getsid(0);
  // A process that ends during the scan of /proc may leave a child at a place
  // that was already read, so the scan repeats until no process has ended.
  for (;;) {
    std::vector<SeenProcess> orphans;
    bool one_ended = false;
    for (const SeenProcess& child : children()) {
      if (contains(workers, child.pid) ||
          contains(children_before_, child.pid) || child.session == own_session)
        continue;
      if (::waitpid(child.pid, nullptr, WNOHANG) == 0)
        orphans.push_back(child);
      else
        one_ended = true;
    }
    if (!one_ended) return orphans;
  }
}

// An orphan is a child that only this process reaps, so neither its number nor
// that of its group can belong to another process meanwhile.
void OrphanWatch::ask_to_end(std::span<const pid_t> workers) {
  const auto ask = [](pid_t target) {
    ::kill(target, SIGTERM);
    ::kill(target, SIGCONT);
  };
  for (const SeenProcess& orphan : living(workers)) {
    if (asked_.contains(orphan.identity())) continue;
    asked_.insert(orphan.identity());
    // The others of an asked group end in their own way, as long as their
    // parent lives.
    if (asked_groups_.contains(orphan.group)) {
      ask(orphan.pid);
      continue;
    }
    note_asked(orphan.group, all_processes());
    ask(group_target(orphan));
  }
}

void OrphanWatch::note_asked(std::span<const pid_t> groups) {
  const std::vector<SeenProcess> processes = all_processes();
  for (const pid_t group : groups) note_asked(group, processes);
}

// Before the signal: a process that starts meanwhile may get two, which is
// better than none.
void OrphanWatch::note_asked(pid_t group,
                             std::span<const SeenProcess> processes) {
  asked_groups_.insert(group);
  for (const SeenProcess& process : processes)
    if (process.group == group) asked_.insert(process.identity());
}

void OrphanWatch::kill(std::span<const pid_t> workers) const {
  for (const SeenProcess& orphan : living(workers))
    ::kill(group_target(orphan), SIGKILL);
}

}  // namespace lockstep
