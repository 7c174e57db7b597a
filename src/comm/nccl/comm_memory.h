// Memory that NCCL may still reach after a rank has ended its communicator.
//
// When several ranks of one process each have a GPU, NCCL frees their
// communicator's resources when the last of them ends it, and until then it may
// use all memory registered there. A rank that aborts leaves its memory here.
//
// Threads: every method may be called from any thread.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "src/base/mutex.h"
#include "src/comm/nccl/gpu.h"

namespace lockstep {

class CommMemory {
 public:
  // The object for the communicator with this `id` (kGpuUniqueIdBytes), shared
  // by all of its ranks in this process: each holds it until it has ended its
  // own part.
  static std::shared_ptr<CommMemory> of(const char* id);

  CommMemory() = default;
  // Releases all memory that it holds.
  ~CommMemory();
  CommMemory(const CommMemory&) = delete;
  CommMemory& operator=(const CommMemory&) = delete;

  void keep(const Gpu& gpu, std::byte* memory);

 private:
  Mutex mutex_;
  std::vector<std::pair<Gpu, std::byte*>> kept_ LOCKSTEP_GUARDED_BY(mutex_);
};

// Frees `memory` on its device.
void release(const Gpu& gpu, std::byte* memory) noexcept;

}  // namespace lockstep
