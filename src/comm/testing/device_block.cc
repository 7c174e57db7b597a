#include "src/comm/testing/device_block.h"

#include <chrono>
#include <utility>

#include "lockstep/base/deadline.h"
#include "lockstep/base/error.h"

namespace lockstep {
namespace {

std::shared_ptr<std::byte> allocate(const Gpu& gpu, std::size_t bytes) {
  const GpuScope scope(gpu);
  LockstepGpuOutcome outcome{};
  void* memory = nullptr;
  gpu.check(gpu.table().allocate(&memory, bytes, &outcome), outcome,
            "allocate");
  return {static_cast<std::byte*>(memory),
          [gpu](std::byte* block) { gpu.table().release(block); }};
}

}  // namespace

DeviceBlock::DeviceBlock(const Gpu& gpu, std::size_t bytes)
    : DeviceBlock(gpu, allocate(gpu, bytes), bytes) {}

DeviceBlock::DeviceBlock(const Gpu& gpu, std::shared_ptr<std::byte> memory,
                         std::size_t bytes)
    : gpu_(gpu), memory_(std::move(memory)), bytes_(bytes) {}

Buffer DeviceBlock::floats() const {
  return {data(),
          static_cast<std::int64_t>(bytes_ / sizeof(float)),
          DataType::kFloat32,
          {DeviceKind::kCuda, gpu_.index()}};
}

void DeviceBlock::copy(void* to, const void* from) const {
  const GpuScope scope(gpu_);
  LockstepGpuOutcome outcome{};
  gpu_.check(gpu_.table().copy(to, from, bytes_, nullptr, &outcome), outcome,
             "copy");
  GpuEvent copied(gpu_);
  copied.record(nullptr);
  const Deadline deadline(std::chrono::minutes(1));
  while (!copied.happened())
    if (deadline.expired()) throw Timeout("a copy does not end");
}

}  // namespace lockstep
