// Ends training in good order when a user or a scheduler asks for it: by
// SIGTERM, as Slurm and Kubernetes send it, and as `lockstep run` passes it on.
//
//     StopRequest stop(group);
//     for (auto& batch : batches) {
//       train(batch);
//       if (!stop.agreed()) continue;
//       checkpoints.save(step);
//       return StopRequest::kStartAgain;
//     }
//
// The signal comes to each rank at another moment, and perhaps to one rank
// only. So the ranks agree after each step, by an all_reduce of four bytes.
//
// Threads: each object belongs to one thread. Ranks that are threads of one
//          process each have one, and all learn of the process's signal.
// Errors:  InvalidArgument where the process has one for another signal, or
//          `signal` cannot be handled; from agreed() those of all_reduce.
// Source:  EX_TEMPFAIL is of BSD's sysexits.h: the caller may try again.
#pragma once

#include <csignal>
#include <memory>

#include "lockstep/comm/process_group.h"

namespace lockstep {

class StopRequest {
 public:
  // The exit code by which a program says that it has saved its state and can
  // be started again (EX_TEMPFAIL). Launchers pass it on.
  static constexpr int kStartAgain = 75;

  // From now on `signal` no longer ends this process, but a second one does
  // that comes over two seconds later.
  explicit StopRequest(std::shared_ptr<ProcessGroup> group,
                       int signal = SIGTERM);
  // The process's last one restores the signal's earlier action, unless the
  // ranks have agreed to stop: the signal may come to another rank when this
  // one is already leaving.
  ~StopRequest();
  StopRequest(const StopRequest&) = delete;
  StopRequest& operator=(const StopRequest&) = delete;

  // Whether a rank of the group has received the signal: the same answer on all
  // ranks. Every rank must call it at the same point of the program.
  bool agreed();

 private:
  const std::shared_ptr<ProcessGroup> group_;
};

}  // namespace lockstep
