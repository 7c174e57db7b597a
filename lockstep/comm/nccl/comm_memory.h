// Memory that NCCL may still reach after a rank has ended its communicator.
//
// Of several ranks of one process, each with a GPU, NCCL frees what they have
// when the last of them ends the communicator, and until then it has all that
// is registered there. A rank that aborts leaves its memory here.
//
// Threads: every method may be called from any thread.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "lockstep/base/mutex.h"
#include "lockstep/comm/nccl/gpu.h"

namespace lockstep {

class CommMemory {
 public:
  // The one of the communicator with this `id` (kGpuUniqueIdBytes), for all of
  // its ranks in this process: each holds it until it has ended its own part.
  static std::shared_ptr<CommMemory> of(const char* id);

  CommMemory() = default;
  // Releases all that it was given.
  ~CommMemory();
  CommMemory(const CommMemory&) = delete;
  CommMemory& operator=(const CommMemory&) = delete;

  void keep(const Gpu& gpu, std::byte* memory);

 private:
  Mutex mutex_;
  std::vector<std::pair<Gpu, std::byte*>> kept_ LOCKSTEP_GUARDED_BY(mutex_);
};

// Gives `memory` back to its device.
void release(const Gpu& gpu, std::byte* memory) noexcept;

}  // namespace lockstep
