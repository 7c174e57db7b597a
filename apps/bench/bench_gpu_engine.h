// One of our process groups as a benchmark's engine on GPU memory, with NCCL.
// Each rank has its own GPU.
//
// The engine orders calls and copies in its own stream. run() returns when the
// device has finished the call; run_timed() starts several calls back to back
// and waits for the last, as nccl-tests do.
//
// Threads: the thread that made it, which uses the rank's device from then on.
// Errors:  those of GroupEngine; SystemError (ENOMEM) naming the rank, the
//          device and the bytes when the device is out of memory; Timeout when
//          a copy exceeds the timeout of the group's operations.
#pragma once

#include <memory>
#include <vector>

#include "apps/bench/bench_group_engine.h"
#include "src/comm/nccl/gpu.h"

namespace lockstep {

class GpuEngine : public GroupEngine {
 public:
  // The number of calls per timed run.
  static constexpr int kCallsInARow = 20;

  GpuEngine(std::shared_ptr<ProcessGroup> group, const Gpu& gpu);

  // Device memory; shared memory is registered with NCCL. Free it before the
  // engine is destroyed.
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
  // Returns when the copy is complete.
  void copy(void* to, const void* from, std::size_t bytes);

  const Gpu gpu_;
  const GpuScope scope_;
  const GpuStream stream_;
  GpuEvent copied_;
  // Staging memory for copies to and from the device.
  std::vector<std::byte> staged_;
};

}  // namespace lockstep
