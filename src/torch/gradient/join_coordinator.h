// Uneven inputs: before ranks do something together, they tell each other what
// that is, or that they are out of data.
//
// A rank that is out of data goes on calling, and does its part of what the
// others announce, until no rank has data left. What is announced is what needs
// all ranks, not the steps of a loop: passes within no_sync, or several forward
// passes before one backward pass, need no rule of their own.
//
// Threads: single-threaded.
// Errors:  from announce(), on every rank: Mismatch when ranks are about to do
//          different things or are in different scopes, InvalidArgument when
//          some are out of data and that was not to happen. What ProcessGroup's
//          operations throw.
// Source:  PyTorch's torch.distributed.algorithms.Join.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "lockstep/comm/process_group.h"

namespace lockstep {

struct JoinCoordinatorOptions {
  // As in JoinOptions.
  bool divide_by_initial_world_size = true;
  bool throw_on_early_termination = false;
};

enum class Activity : std::uint8_t { kOutOfData, kForward, kBackward };

// Who answered.
struct Participation {
  Activity activity = Activity::kOutOfData;  // of those that have data
  int active = 0;                            // how many of them there are
  // The rank whose buffers, and whose order of gradients, all ranks take.
  int root = 0;
  int divisor = 1;  // of the sum of gradients
};

// Everybody is there, as always without uneven inputs.
Participation full_participation(const ProcessGroup& group, Activity activity);

class JoinCoordinator {
 public:
  // Every rank makes one at the same point.
  JoinCoordinator(std::shared_ptr<ProcessGroup> group,
                  const JoinCoordinatorOptions& options);

  // Waits for every rank's answer.
  Participation announce(Activity mine);

  // The last participation in which a rank had data.
  const Participation& last_with_data() const { return last_; }

 private:
  std::vector<std::uint8_t> answers_to(Activity mine);

  std::shared_ptr<ProcessGroup> group_;
  JoinCoordinatorOptions options_;
  std::int64_t number_;  // of the scope
  Participation last_;
};

}  // namespace lockstep
