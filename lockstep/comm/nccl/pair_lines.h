// Lines for messages: one for each pair of ranks and direction, made at the
// first message of the pair.
//
// What a line is given it carries out in order, so that messages must have
// others than collectives, and each direction its own. Making them takes both
// ranks, of which the lower tells the other NCCL's identifiers through the
// group of the CPU; nobody waits for that, and messages queue meanwhile.
//
// Threads: one at a time.
// Errors:  what GpuLine and the group's operations throw.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <vector>

#include "lockstep/comm/backend.h"
#include "lockstep/comm/nccl/gpu.h"
#include "lockstep/comm/nccl/launch_queue.h"

namespace lockstep {

class PairLines {
 public:
  // `control` is the group of the CPU, of whose messages these have tag 0. The
  // object outlives those that are under way.
  PairLines(const Gpu& gpu, const GroupIdentity& identity, Backend& control)
      : gpu_(gpu), identity_(identity), control_(control) {}

  // Launches `message`, now or in a later advance(), in order.
  void launch(std::shared_ptr<NcclFlight> message);

  // Goes as far as possible; throws when NCCL has lost somebody.
  void advance();

  // Those that there are.
  std::vector<GpuLine*> lines() const;

  // Returns when nothing touches this object any more, once the group of the
  // CPU has failed.
  void settle() noexcept;

 private:
  using Ids = std::array<char, 2 * kGpuUniqueIdBytes>;
  struct Pair {
    Ids ids{};  // of the line from the lower rank, and of the other
    Work ids_travel{};
    LaunchQueue out{0, 2}, in{1, 2};
  };

  Pair& pair_with(int peer);
  void open(int peer, Pair& pair);
  std::unique_ptr<GpuLine> line(const char* id, bool sends, int peer);
  void advance(int peer, Pair& pair);

  const Gpu gpu_;
  const GroupIdentity identity_;
  Backend& control_;
  std::map<int, Pair> pairs_;
};

}  // namespace lockstep
