// The scope of uneven inputs: ranks that run out of data do not leave the
// others waiting.
//
//     {
//       const auto scope = model.join();
//       for (auto& batch : my_batches) { … backward, step … }
//     }
//
// At the end of the scope a rank does its part of whatever the others still do
// together, with zeros for gradients, until no rank has data left. Then all
// take the parameters and buffers of the last rank that had. Passes within
// no_sync() concern this rank alone.
//
// Threads: single-threaded. Entered by every rank of the group.
// Errors:  from forward and backward passes within, what JoinCoordinator
// throws. The
//          end of the scope waits for the other ranks and throws what their
//          operations and JoinCoordinator do; when the scope is left by an
//          exception it does nothing, and the others get PeerFailure once this
//          rank leaves the group.
// Source:  PyTorch's Join for one DistributedDataParallel.
#pragma once

#include "lockstep/torch/ddp/replica.h"
#include "lockstep/torch/reducer/join_coordinator.h"

namespace lockstep {

class [[nodiscard]] Join {
 public:
  Join(Replica& replica, const JoinOptions& options);
  ~Join() noexcept(false);
  Join(const Join&) = delete;
  Join& operator=(const Join&) = delete;

 private:
  Replica& replica_;
  int exceptions_;  // in flight when the scope was entered
};

}  // namespace lockstep
