// A process group of ours as what carries out a benchmark's collectives on the
// memory of GPUs: each rank's own, by NCCL.
//
// Calls and copies are ordered in a stream of the engine's. A single call ends
// when the device has carried it out; calls that are timed are started one
// behind the other, and the host waits for the last, as nccl-tests do.
//
// Threads: the one that made it, which uses the rank's device from then on.
// Errors:  as GroupEngine; SystemError (ENOMEM) naming the rank, the device and
//          the bytes where memory ran out; Timeout where a copy takes longer
//          than the group's operations may.
#pragma once

#include <memory>
#include <vector>

#include "lockstep/comm/nccl/gpu.h"
#include "lockstep/tools/bench_group_engine.h"

namespace lockstep {

class GpuEngine : public GroupEngine {
 public:
  // How many calls are timed as one.
  static constexpr int kCallsInARow = 20;

  GpuEngine(std::shared_ptr<ProcessGroup> group, const Gpu& gpu);

  // The device's; what is shared is registered with NCCL. Must end before the
  // engine does.
  std::shared_ptr<std::byte> allocate(std::size_t bytes,
                                      Memory memory) override;
  void write(std::byte* memory, std::size_t bytes, const Fill& fill) override;
  void read(const std::byte* memory, std::size_t bytes,
            const Look& look) override;
  void run(const CollectiveCall& call) override;
  int run_timed(const CollectiveCall& call) override;

 private:
  std::shared_ptr<std::byte> allocate_plain(std::size_t bytes);
  [[noreturn]] void refuse_for_room(std::size_t bytes) const;
  // Returns when that is done.
  void copy(void* to, const void* from, std::size_t bytes);

  const Gpu gpu_;
  const GpuScope scope_;
  const GpuStream stream_;
  GpuEvent copied_;
  // On its way to or from the device.
  std::vector<std::byte> staged_;
};

}  // namespace lockstep
