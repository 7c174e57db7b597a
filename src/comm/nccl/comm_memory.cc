#include "src/comm/nccl/comm_memory.h"

#include <exception>
#include <map>
#include <string>

namespace lockstep {

// Ranks that are threads of one process share only process-wide state.
std::shared_ptr<CommMemory> CommMemory::of(const char* id) {
  struct All {
    Mutex mutex;
    std::map<std::string, std::weak_ptr<CommMemory>> by_id
        LOCKSTEP_GUARDED_BY(mutex);
  };
  // Never destroyed: groups may end at program exit.
  static auto& all = *new All;
  MutexLock lock(all.mutex);
  std::erase_if(all.by_id,
                [](const auto& one) { return one.second.expired(); });
  auto& known = all.by_id[std::string(id, kGpuUniqueIdBytes)];
  auto memory = known.lock();
  if (!memory) known = memory = std::make_shared<CommMemory>();
  return memory;
}

CommMemory::~CommMemory() {
  MutexLock lock(mutex_);
  for (const auto& [gpu, memory] : kept_) release(gpu, memory);
}

void CommMemory::keep(const Gpu& gpu, std::byte* memory) {
  MutexLock lock(mutex_);
  kept_.emplace_back(gpu, memory);
}

void release(const Gpu& gpu, std::byte* memory) noexcept try {
  const GpuScope scope(gpu);
  gpu.table().release(memory);
} catch (const std::exception&) {
  // The device is lost, including its memory.
}

}  // namespace lockstep
