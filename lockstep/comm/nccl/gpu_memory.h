// Memory of GPUs that a group's collectives reach where it lies: NCCL's own,
// registered with the line that carries them.
//
// NCCL takes and gives up registrations only while a line takes no calls. So
// what is new is registered when the line is about to be given its next call,
// and nobody who allocates waits for a line. What is dropped while it is
// registered is left to the group's thread, which frees it when nothing of the
// group is under way: freeing waits for the device, and with it for whatever
// hangs there, which only that thread would end. A line that ends in good order
// has given all up before. One that is aborted has not, before the last of the
// process's ranks ends it: what was registered is freed then. All else is freed
// where it is dropped, once the line has ended.
//
// Threads: every method may be called from any thread.
// Errors:  those of ProcessGroup::allocate_on().
// Source:  ncclMemAlloc() and ncclCommRegister(), in NCCL's "User Buffer
//          Registration".
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <utility>

#include "lockstep/base/mutex.h"
#include "lockstep/base/settings.h"
#include "lockstep/comm/backend.h"
#include "lockstep/comm/nccl/gpu.h"

namespace lockstep {

class GpuMemory : public std::enable_shared_from_this<GpuMemory> {
 public:
  // Of the group `identity`. Looks for no GPU yet.
  GpuMemory(GroupIdentity identity, Settings settings)
      : identity_(std::move(identity)), settings_(std::move(settings)) {}

  // The pointer keeps this object, but nothing else of the group.
  std::shared_ptr<std::byte> allocate(Device device, std::size_t bytes);

  // What follows is the backend's, which calls the two without its lock, for
  // `wake` takes it: that is called when there is something to free, until
  // line_ended(). Then the line is aborted or destroyed.
  void serve(std::function<void()> wake);
  void line_ended() noexcept;

  // And these with its lock, or when the line is one thread's alone; all but
  // the last when `line`, of `gpu`, is ready, and those that unregister when
  // nothing of the group is under way, on any line.
  void register_new(const Gpu& gpu, GpuLine& line);
  void free_dropped(GpuLine& line);
  void unregister_all(GpuLine& line);
  bool has_dropped() const;

 private:
  struct Block {
    Gpu gpu;
    std::size_t bytes;
    bool registered = false;
    void* handle = nullptr;  // null also where NCCL cannot
    // Of the line where it is registered.
    std::weak_ptr<CommMemory> reached_by{};
  };
  using Blocks = std::map<std::byte*, Block>;

  std::byte* ask_for(const Gpu& gpu, std::size_t bytes) const;
  void drop(std::byte* memory) noexcept;
  static void unregister(Blocks& blocks, GpuLine& line) noexcept;
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
