// Finds and ends the processes that workers leave behind.
//
// While it lives, this process adopts every descendant whose parent dies
// (PR_SET_CHILD_SUBREAPER), even one that has left its process group and
// session. So after the workers are gone, the processes that they started are
// our children, and those that these started become our children in turn.
// Children from before its construction do not count. Meanwhile this process
// must start no children except workers.
//
// Threads: one thread at a time.
// Errors:  none; without /proc it finds no process.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <set>
#include <span>
#include <utility>
#include <vector>

namespace lockstep {

// A process as /proc/PID/stat shows it.
struct SeenProcess {
  pid_t pid = 0;
  pid_t parent = 0;
  pid_t group = 0;
  pid_t session = 0;
  std::uint64_t began = 0;  // clock ticks since the host started

  // The kernel may give the number of a process that has ended to another.
  std::pair<pid_t, std::uint64_t> identity() const { return {pid, began}; }
};

class OrphanWatch {
 public:
  OrphanWatch();
  ~OrphanWatch();
  OrphanWatch(const OrphanWatch&) = delete;
  OrphanWatch& operator=(const OrphanWatch&) = delete;

  // Reaps the orphans that have ended and returns those that still run. Ignores
  // `workers`.
  std::vector<SeenProcess> living(std::span<const pid_t> workers) const;

  // Asks the orphans to end (SIGTERM, and SIGCONT for one that is stopped), and
  // the others of their process groups, because a shell answers only when its
  // program has ended. Each process is asked once, since a second SIGTERM cuts
  // the saving of a state short. The caller calls it whenever a child has
  // ended, since that may have left further orphans.
  void ask_to_end(std::span<const pid_t> workers);

  // The caller asks these process groups itself, right after this call.
  void note_asked(std::span<const pid_t> groups);

  // Kills the orphans with their process groups.
  void kill(std::span<const pid_t> workers) const;

 private:
  void note_asked(pid_t group, std::span<const SeenProcess> processes);

  std::vector<pid_t> children_before_;
  std::set<std::pair<pid_t, std::uint64_t>> asked_;
  std::set<pid_t> asked_groups_;
  int was_subreaper_ = 0;
};

}  // namespace lockstep
