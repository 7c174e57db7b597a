#include "src/comm/nccl/gpu_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "lockstep/base/error.h"
#include "src/comm/nccl/comm_memory.h"
#include "src/comm/nccl/gpu_plugin.h"
#include "src/comm/nccl/nccl_rendezvous.h"

namespace lockstep {

std::byte* GpuMemory::ask_for(const Gpu& gpu, std::size_t bytes) const {
  const GpuScope scope(gpu);
  void* memory = nullptr;
  LockstepGpuOutcome outcome{};
  const auto result = gpu.table().allocate(&memory, bytes, &outcome);
  if (result == kGpuNoMemory)
    throw SystemError(
        fmt::format(
            "allocate_on: GPU {} has no room for {} bytes more on rank {} of "
            "{} (group \"{}\"): {}\n  next:    make the batch or the model "
            "smaller, shard it over more ranks, or see with nvidia-smi who "
            "else uses the device",
            gpu.index(), bytes, identity_.rank, identity_.size, identity_.name,
            outcome.text),
        ENOMEM);
  gpu.check(result, outcome, "allocate");
  return static_cast<std::byte*>(memory);
}

std::shared_ptr<std::byte> GpuMemory::allocate(Device device,
                                               std::size_t bytes) {
  const Gpu gpu(load_gpu_table(settings_), device.index);
  check_gpu(gpu);
  // Zero bytes get an address of their own too.
  bytes = std::max<std::size_t>(bytes, 1);
  const auto free = [&gpu](std::byte* memory) { gpu.table().release(memory); };
  std::unique_ptr<std::byte, decltype(free)> memory(ask_for(gpu, bytes), free);
  {
    MutexLock lock(mutex_);
    blocks_.emplace(memory.get(), Block{.gpu = gpu, .bytes = bytes});
    has_new_ = true;
  }
  return {memory.release(),
          [self = shared_from_this()](std::byte* its) { self->drop(its); }};
}

void GpuMemory::drop(std::byte* memory) noexcept {
  Blocks free_now;
  {
    MutexLock lock(mutex_);
    auto block = blocks_.extract(memory);
    const bool waits = block.mapped().registered && !line_has_ended_;
    (waits ? dropped_ : free_now).insert(std::move(block));
  }
  free(free_now);
  if (!free_now.empty()) return;
  MutexLock lock(waking_);
  if (wake_) wake_();
}

// If other ranks of the process still hold the communicator, the last of them
// frees the memory.
void GpuMemory::free(const Blocks& blocks) noexcept {
  for (const auto& [memory, block] : blocks) {
    if (const auto reached_by = block.reached_by.lock())
      reached_by->keep(block.gpu, memory);
    else
      release(block.gpu, memory);
  }
}

void GpuMemory::unregister(Blocks& blocks, GpuCommunicator& line) noexcept {
  for (auto& [memory, block] : blocks) {
    if (!block.registered) continue;
    line.unregister_memory(block.handle);
    block.registered = false;
    block.reached_by.reset();
  }
}

void GpuMemory::serve(std::function<void()> wake) {
  MutexLock lock(waking_);
  wake_ = std::move(wake);
}

void GpuMemory::register_new(const Gpu& gpu, GpuCommunicator& line) {
  MutexLock lock(mutex_);
  if (!has_new_) return;
  for (auto& [memory, block] : blocks_) {
    if (block.registered || block.gpu.index() != gpu.index()) continue;
    block.handle = line.register_memory(memory, block.bytes);
    block.registered = true;
    block.reached_by = line.memory();
  }
  has_new_ = false;
}

bool GpuMemory::has_dropped() const {
  MutexLock lock(mutex_);
  return !dropped_.empty();
}

void GpuMemory::free_dropped(GpuCommunicator& line) {
  Blocks dropped;
  {
    MutexLock lock(mutex_);
    dropped.swap(dropped_);
  }
  unregister(dropped, line);
  free(dropped);
}

void GpuMemory::unregister_all(GpuCommunicator& line) {
  MutexLock lock(mutex_);
  unregister(blocks_, line);
  unregister(dropped_, line);
}

void GpuMemory::line_ended() noexcept {
  serve(nullptr);
  Blocks dropped;
  {
    MutexLock lock(mutex_);
    line_has_ended_ = true;
    dropped.swap(dropped_);
  }
  free(dropped);
}

}  // namespace lockstep
