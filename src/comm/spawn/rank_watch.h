// Waits for the ranks of one spawn(), ends them when one fails, and finds the
// rank that caused the failures of the others.
//
// A rank counts as failed if it ends without the record that its function has
// returned, or with an exit status other than 0. The watch blames one of them
// as a launcher does: see deaths.h.
//
// Threads: one thread, which must be the one that started the ranks.
// Errors:  SystemError when the kernel refuses to wait.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/deadline.h"
#include "src/base/exit_status.h"
#include "src/faults/deaths.h"
#include "src/net/file_descriptor.h"

namespace lockstep::internal {

// How a rank failed; `record` is empty if the rank sent none.
struct FailedRank {
  int rank = -1;
  ExitStatus status = {};
  std::string record = {};
};

class RankWatch {
 public:
  explicit RankWatch(std::chrono::nanoseconds grace) : grace_(grace) {}
  // Kills and reaps the ranks that still run.
  ~RankWatch();
  RankWatch(const RankWatch&) = delete;
  RankWatch& operator=(const RankWatch&) = delete;

  // Watches the next rank: a child of this process, and the read end of its
  // result pipe.
  void add(pid_t pid, FileDescriptor result);

  // Waits until all ranks have ended. Returns the one to blame, if any failed.
  // When one of `owners` (borrowed) becomes readable, kills the ranks.
  std::optional<FailedRank> wait(const std::vector<int>& owners);

 private:
  struct Rank {
    pid_t pid;
    FileDescriptor process;  // a pidfd, if the kernel has them
    FileDescriptor result;
    std::string record = {};
    bool ended = false;
  };
  enum class State { kRuns, kEnds, kIsKilled };

  bool runs() const;
  void wait_once(const std::vector<int>& owners);
  void take_ended();
  void advance();
  void enter(State state, std::chrono::nanoseconds limit);
  void signal_all(int signal) const;

  std::vector<Rank> ranks_;
  const std::chrono::nanoseconds grace_;
  State state_ = State::kRuns;
  Deadline limit_ = Deadline::never();  // of the state
  Deaths deaths_;  // before the watch asked the other ranks to end
};

}  // namespace lockstep::internal
