// Lines for messages: one per pair of ranks and direction, made at the pair's
// first message.
//
// A line runs its calls in order, so messages need other lines than
// collectives, and each direction needs its own. Both ranks make a line
// together: the lower rank sends NCCL's identifiers to the other through the
// CPU group. No thread waits for that; messages queue meanwhile.
//
// Threads: one thread at a time.
// Errors:  those of GpuCommunicator and of the group's operations.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <vector>

#include "src/comm/nccl/gpu.h"
#include "src/comm/nccl/launch_queue.h"
#include "src/comm/operation/backend.h"

namespace lockstep {

class PointToPointCommunicators {
 public:
  // `control` is the CPU group, where this object uses messages with tag 0. The
  // object outlives its messages under way.
  PointToPointCommunicators(const Gpu& gpu, const GroupIdentity& identity,
                            Backend& control)
      : gpu_(gpu), identity_(identity), control_(control) {}

  // Launches `message` in order, now or in a later advance().
  void launch(std::shared_ptr<NcclOperation> message);

  // Launches as much as possible; throws when NCCL has lost a rank.
  void advance();

  // All existing lines.
  std::vector<GpuCommunicator*> lines() const;

  // Call after the CPU group has failed. Returns when no thread touches this
  // object any more.
  void settle() noexcept;

 private:
  using Ids = std::array<char, 2 * kGpuUniqueIdBytes>;
  struct Pair {
    Ids ids{};  // of the line from the lower rank, and to it
    Work ids_travel{};
    LaunchQueue out{0, 2}, in{1, 2};
  };

  Pair& pair_with(int peer);
  void open(int peer, Pair& pair);
  std::unique_ptr<GpuCommunicator> line(const char* id, bool sends, int peer);
  void advance(int peer, Pair& pair);

  const Gpu gpu_;
  const GroupIdentity identity_;
  Backend& control_;
  std::map<int, Pair> pairs_;
};

}  // namespace lockstep
