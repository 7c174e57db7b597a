#include "src/torch/testing/fake_cuda.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/CUDAHooksInterface.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

#include "lockstep/base/deadline.h"
#include "lockstep/base/error.h"
#include "src/torch/device/device_graph.h"
#include "src/torch/testing/fake_cuda_state.h"

namespace lockstep {
namespace {

constexpr std::chrono::minutes kLong{1};

std::atomic<FakeCudaState*> current_state{nullptr};

// at::manual_seed() and similar functions see no devices. Without a FakeCuda
// there is no CUDA.
struct FakeCudaHooks : at::CUDAHooksInterface {
  bool hasCUDA() const override { return current_state.load() != nullptr; }
  bool isBuilt() const override { return hasCUDA(); }
  bool isAvailable() const override { return hasCUDA(); }
  bool hasPrimaryContext(c10::DeviceIndex device) const override {
    return hasCUDA() && FakeCudaState::current().allocated_on(device) > 0;
  }
  void init() const override {}
  const at::Generator& getDefaultGenerator(
      c10::DeviceIndex device) const override {
    return FakeCudaState::current().generators(device).usual;
  }
  // This fake does not distinguish kinds of host memory.
  c10::Allocator* getPinnedMemoryAllocator() const override {
    return c10::GetAllocator(c10::kCPU);
  }
};

std::unique_ptr<at::CUDAHooksInterface> make_hooks(at::CUDAHooksArgs) {
  return std::make_unique<FakeCudaHooks>();
}

// Runs before any test: LibTorch gets its hooks once, and starts autograd's
// threads, one per device of its guard, at the first backward pass.
bool register_device() {
  constexpr char kName[] = "CUDAHooks";
  if (at::CUDAHooksRegistry()->Has(kName)) return false;
  at::CUDAHooksRegistry()->Register(kName, make_hooks);
  const c10::impl::DeviceGuardImplRegistrar guard(c10::kCUDA,
                                                  fake_cuda_guard());
  return true;
}
const bool is_registered = register_device();

}  // namespace

FakeCudaState::~FakeCudaState() { empty_cache(); }

// Like LibTorch, it waits for the streams first.
void FakeCudaState::empty_cache() {
  gpu_.carry_out_all();
  const MutexLock lock(mutex_);
  if (!given_back_.empty()) gpu_.set_memory(FakeGpu::Memory::kEnough);
  for (const auto& block : given_back_) {
    if (block->captured && current_state.load() == this) continue;
    const Gpu gpu = device(block->device);
    const GpuScope scope(gpu);
    GpuEvent done(gpu);
    done.record(block->stream);
    while (!done.happened()) std::this_thread::yield();
    gpu_.table().release(block->memory);
  }
  std::erase_if(given_back_, [this](const auto& block) {
    return !block->captured || current_state.load() != this;
  });
}

FakeCudaState& FakeCudaState::current() {
  FakeCudaState* const state = current_state.load();
  if (state == nullptr) throw Error("the FakeCuda is destroyed");
  return *state;
}

void FakeCudaState::set_current(FakeCudaState* state) {
  current_state.store(state);
}

FakeCudaState::Streams& FakeCudaState::streams() {
  thread_local const FakeCudaState* whose = nullptr;
  thread_local Streams streams;
  if (whose != this) streams.clear();
  whose = this;
  return streams;
}

c10::DeviceIndex& FakeCudaState::device_in_use() {
  thread_local c10::DeviceIndex device = 0;
  return device;
}

LockstepGpuStream* FakeCudaState::new_stream(c10::DeviceIndex device) {
  const Gpu gpu = this->device(device);
  const GpuScope scope(gpu);
  {
    const MutexLock lock(mutex_);
    Pool& pool = pools_[device];
    if (pool.streams.size() >= kStreamsOfPool)
      return pool.streams[pool.given++ % pool.streams.size()]->get();
  }
  auto stream = std::make_unique<GpuStream>(gpu);
  const MutexLock lock(mutex_);
  return pools_[device].streams.emplace_back(std::move(stream))->get();
}

std::vector<LockstepGpuStream*> FakeCudaState::streams_of(
    c10::DeviceIndex device) const {
  std::vector<LockstepGpuStream*> streams{nullptr};
  const MutexLock lock(mutex_);
  const auto pool = pools_.find(device);
  if (pool == pools_.end()) return streams;
  for (const auto& stream : pool->second.streams)
    streams.push_back(stream->get());
  return streams;
}

const FakeCudaState::Generators& FakeCudaState::generators(
    c10::DeviceIndex device) {
  const MutexLock lock(mutex_);
  const auto found = generators_.find(device);
  if (found != generators_.end()) return found->second;
  const auto generator = [] {
    return at::make_generator<at::CPUGeneratorImpl>();
  };
  return generators_.emplace(device, Generators{generator(), generator()})
      .first->second;
}

c10::DataPtr FakeCudaState::allocate(std::size_t bytes) {
  const c10::DeviceIndex index = device_in_use();
  const c10::Device device(c10::kCUDA, index);
  if (bytes == 0) return {nullptr, device};
  const Gpu gpu = this->device(index);
  const GpuScope scope(gpu);
  check_room(index, bytes);
  void* memory = nullptr;
  LockstepGpuOutcome outcome{};
  gpu.check(gpu_.table().allocate(&memory, bytes, &outcome), outcome,
            "allocate");
  auto block = std::make_unique<Block>(
      Block{memory, bytes, index, current_fake_stream(device)});
  block->captured = capture_of(gpu, block->stream) != 0;
  const MutexLock lock(mutex_);
  ++blocks_;
  ++allocated_[index];
  used_[index] += bytes;
  return {memory, block.release(), &delete_block, device};
}

// With LibTorch's message.
void FakeCudaState::check_room(c10::DeviceIndex device,
                               std::size_t bytes) const {
  const MutexLock lock(mutex_);
  const auto room = room_.find(device);
  if (room == room_.end()) return;
  const auto found = used_.find(device);
  const std::size_t used = found == used_.end() ? 0 : found->second;
  const std::size_t free = room->second - std::min(room->second, used);
  TORCH_CHECK_WITH(
      OutOfMemoryError, bytes <= free, "CUDA out of memory. Tried to allocate ",
      bytes, " bytes. GPU ", static_cast<int>(device),
      " has a total capacity of ", room->second, " bytes of which ", free,
      " bytes is free. Of the allocated memory ", used,
      " bytes is allocated by PyTorch.");
}

void FakeCudaState::delete_block(void* block) {
  FakeCudaState* const state = current_state.load();
  if (state != nullptr) state->give_back(*static_cast<Block*>(block));
}

// The memory itself stays until the end: streams may still use it.
void FakeCudaState::give_back(Block& block) {
  poison(block);
  const MutexLock lock(mutex_);
  --blocks_;
  used_[block.device] -= block.bytes;
  given_back_.emplace_back(&block);
}

// Within a capture the graph poisons the block, at each launch. If only some of
// its streams are in a capture, LibTorch waits for its end: then the block
// keeps its bytes.
void FakeCudaState::poison(Block& block) {
  const Gpu gpu = device(block.device);
  const GpuScope scope(gpu);
  const std::uint64_t capture = capture_of(gpu, block.stream);
  block.captured = block.captured || capture != 0;
  for (LockstepGpuStream* const other : block.others) {
    if (capture_of(gpu, other) == capture) continue;
    block.captured = true;
    return;
  }
  for (LockstepGpuStream* const other : block.others) {
    GpuEvent event(gpu);
    event.record(other);
    event.hold_up(block.stream);
  }
  block.poison.assign(block.bytes, std::byte{0xFF});
  LockstepGpuOutcome outcome{};
  gpu_.table().copy(block.memory, block.poison.data(), block.bytes,
                    block.stream, &outcome);
  if (capture != 0) return;
  await_fake_stream(gpu, block.stream);
  gpu_.forget(block.poison.data(), block.poison.size());
  block.poison = {};
}

void FakeCudaState::keep_for(const c10::DataPtr& memory,
                             LockstepGpuStream* stream) {
  if (memory.get_deleter() != &delete_block) return;
  const MutexLock lock(mutex_);
  static_cast<Block*>(memory.get_context())->others.push_back(stream);
}

std::size_t FakeCudaState::blocks() const {
  const MutexLock lock(mutex_);
  return blocks_;
}

std::size_t FakeCudaState::allocated_on(int device) const {
  const MutexLock lock(mutex_);
  const auto found = allocated_.find(device);
  return found == allocated_.end() ? 0 : found->second;
}

void FakeCudaState::set_room(int device, std::size_t bytes) {
  const MutexLock lock(mutex_);
  room_[device] = bytes;
}

bool FakeCuda::possible() { return is_registered; }

FakeCuda::FakeCuda(FakeGpu& gpu) {
  if (!possible()) throw Error("LibTorch has a CUDA of its own");
  [[maybe_unused]] static const bool installed = [] {
    install_fake_cuda_kernels();
    return true;
  }();
  FakeCudaState::set_current(new FakeCudaState(gpu));
  make_device_graphs_by(make_fake_cuda_graph);
}

FakeCuda::~FakeCuda() {
  make_device_graphs_by(nullptr);
  const std::unique_ptr<FakeCudaState> state(&FakeCudaState::current());
  FakeCudaState::set_current(nullptr);
}

std::size_t FakeCuda::blocks() const {
  return FakeCudaState::current().blocks();
}

bool FakeCuda::all_given_back() const {
  const Deadline deadline(kLong);
  while (blocks() > 0) {
    if (deadline.expired()) return false;
    std::this_thread::yield();
  }
  return true;
}

std::size_t FakeCuda::allocated_on(int device) const {
  return FakeCudaState::current().allocated_on(device);
}

void FakeCuda::set_room(int device, std::size_t bytes) {
  FakeCudaState::current().set_room(device, bytes);
}

}  // namespace lockstep
