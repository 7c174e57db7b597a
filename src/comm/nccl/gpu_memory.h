// GPU memory that a group's collectives access without copies: NCCL allocates
// it, and it is registered with the line that carries the collectives.
//
// NCCL adds and drops registrations only while a line takes no calls. So new
// memory is registered just before the line's next call, and an allocating
// thread does not wait for a line. The group's thread frees registered memory
// that was dropped, when the group has no operation under way: freeing waits
// for the device, and so for any operation that hangs there, which only that
// thread can end. A line that ends in good order has dropped all registrations.
// An aborted line keeps them until the last of the process's ranks ends it:
// registered memory is freed then. Once the line has ended, the thread that
// drops other memory frees it.
//
// Threads: every method may be called from any thread.
// Errors:  those of GroupCore::allocate_on().
// Source:  ncclMemAlloc() and ncclCommRegister(), in NCCL's "User Buffer
//          Registration".
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <utility>

#include "src/base/mutex.h"
#include "src/base/settings.h"
#include "src/comm/nccl/gpu.h"
#include "src/comm/operation/backend.h"

namespace lockstep {

class GpuMemory : public std::enable_shared_from_this<GpuMemory> {
 public:
  // For the group `identity`. Does not look for a GPU yet.
  GpuMemory(GroupIdentity identity, Settings settings)
      : identity_(std::move(identity)), settings_(std::move(settings)) {}

  // The pointer keeps this object alive, but not the group.
  std::shared_ptr<std::byte> allocate(Device device, std::size_t bytes);

  // The backend calls the following methods: these two without its lock,
  // because `wake` takes it. `wake` is called when there is memory to free,
  // until line_ended(). Then the line is aborted or destroyed.
  void serve(std::function<void()> wake);
  void line_ended() noexcept;

  // The backend calls these with its lock, or when only one thread uses the
  // line; all except the last need `line`, on `gpu`, to be ready, and those
  // that unregister need the group to have no operation under way on any line.
  void register_new(const Gpu& gpu, GpuCommunicator& line);
  void free_dropped(GpuCommunicator& line);
  void unregister_all(GpuCommunicator& line);
  bool has_dropped() const;

 private:
  struct Block {
    Gpu gpu;
    std::size_t bytes;
    bool registered = false;
    void* handle = nullptr;  // null also if NCCL cannot register it
    // The CommMemory of the line that it is registered with.
    std::weak_ptr<CommMemory> reached_by{};
  };
  using Blocks = std::map<std::byte*, Block>;

  std::byte* ask_for(const Gpu& gpu, std::size_t bytes) const;
  void drop(std::byte* memory) noexcept;
  static void unregister(Blocks& blocks, GpuCommunicator& line) noexcept;
  static void free(const Blocks& blocks) noexcept;

  const GroupIdentity identity_;
  const Settings settings_;

  Mutex waking_;  // held before the backend's lock, and that before mutex_
  std::function<void()> wake_ LOCKSTEP_GUARDED_BY(waking_);
  mutable Mutex mutex_;
  Blocks blocks_ LOCKSTEP_GUARDED_BY(mutex_);
  Blocks dropped_ LOCKSTEP_GUARDED_BY(mutex_);  // registered, and to be freed
  bool has_new_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  bool line_has_ended_ LOCKSTEP_GUARDED_BY(mutex_) = false;
};

}  // namespace lockstep
