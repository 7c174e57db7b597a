#include "apps/bench/bench_gpu_engine.h"

#include <fmt/format.h>

#include <array>
#include <cerrno>
#include <thread>
#include <utility>

#include "lockstep/base/error.h"
#include "src/comm/group/group_core.h"

namespace lockstep {

GpuEngine::GpuEngine(std::shared_ptr<ProcessGroup> group, const Gpu& gpu)
    : GroupEngine(std::move(group), {DeviceKind::kCuda, gpu.index()}),
      gpu_(gpu),
      scope_(gpu_),
      stream_(gpu_),
      copied_(gpu_) {
  order_in(stream_.get());
}

std::shared_ptr<std::byte> GpuEngine::allocate(std::size_t bytes,
                                               Memory memory) {
  if (memory == Memory::kPlain) return allocate_plain(bytes);
  try {
    return group().core().allocate_on({DeviceKind::kCuda, gpu_.index()}, bytes);
  } catch (const SystemError& error) {
    if (error.error_number() == ENOMEM) refuse_for_room(bytes);
    throw;
  }
}

std::shared_ptr<std::byte> GpuEngine::allocate_plain(std::size_t bytes) {
  void* memory = nullptr;
  LockstepGpuOutcome outcome{};
  const auto result = gpu_.table().allocate(&memory, bytes, &outcome);
  if (result == kGpuNoMemory) refuse_for_room(bytes);
  gpu_.check(result, outcome, "allocate");
  return {static_cast<std::byte*>(memory), gpu_.table().release};
}

void GpuEngine::refuse_for_room(std::size_t bytes) const {
  throw SystemError(
      fmt::format("rank {} of {}: GPU {} has no room for a buffer of {} bytes; "
                  "end --bytes at a smaller size, or check with nvidia-smi "
                  "which processes use that GPU",
                  rank(), size(), gpu_.index(), bytes),
      ENOMEM);
}

void GpuEngine::write(std::byte* memory, std::size_t bytes, const Fill& fill) {
  staged_.resize(bytes);
  fill(staged_.data());
  copy(memory, staged_.data(), bytes);
}

void GpuEngine::read(const std::byte* memory, std::size_t bytes,
                     const Look& look) {
  staged_.resize(bytes);
  copy(staged_.data(), memory, bytes);
  look(staged_.data());
}

void GpuEngine::copy(void* to, const void* from, std::size_t bytes) {
  LockstepGpuOutcome outcome{};
  gpu_.check(gpu_.table().copy(to, from, bytes, stream_.get(), &outcome),
             outcome, "copy");
  copied_.record(stream_.get());
  const Deadline deadline(group().timeout());
  while (!copied_.happened()) {
    if (deadline.expired())
      throw Timeout(fmt::format(
          "rank {} of {}: a copy of {} bytes on GPU {} does not end\n  next:   "
          " check with nvidia-smi whether the device still responds",
          rank(), size(), bytes, gpu_.index()));
    std::this_thread::yield();
  }
}

void GpuEngine::run(const CollectiveCall& call) {
  const Started started = start(call);
  started.work.synchronize();
  started.receive.synchronize();
}

int GpuEngine::run_timed(const CollectiveCall& call) {
  std::array<Started, kCallsInARow> row;
  for (Started& started : row) started = start(call);
  for (const Started& started : row) {
    started.work.synchronize();
    started.receive.synchronize();
  }
  return kCallsInARow;
}

}  // namespace lockstep
