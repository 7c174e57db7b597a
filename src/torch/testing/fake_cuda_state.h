// State that FakeCuda's parts share: the FakeGpu, and the device and streams
// that each host thread uses on it.
//
// Threads: any.
#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/Allocator.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <cstddef>
#include <map>
#include <memory>
#include <vector>

#include "src/base/mutex.h"
#include "src/base/openmp_threads.h"
#include "src/comm/nccl/gpu.h"
#include "src/comm/testing/fake_gpu/fake_gpu.h"

namespace lockstep {

class FakeCudaState {
 public:
  explicit FakeCudaState(FakeGpu& gpu) : gpu_(gpu) {}
  ~FakeCudaState();
  FakeCudaState(const FakeCudaState&) = delete;
  FakeCudaState& operator=(const FakeCudaState&) = delete;

  // The existing object; Error without one.
  static FakeCudaState& current();
  static void set_current(FakeCudaState* state);

  FakeGpu& fake() { return gpu_; }
  Gpu device(c10::DeviceIndex index) const { return {gpu_.table(), index}; }

  // Of the calling thread: the device on which it allocates, which outlives an
  // object of this class, and the current streams by device, where not the
  // default ones.
  static c10::DeviceIndex& device_in_use();
  using Streams = std::map<c10::DeviceIndex, LockstepGpuStream*>;
  Streams& streams();

  // It lives as long as this object. Like LibTorch's, a device's pool has 32
  // streams, and then reuses them.
  LockstepGpuStream* new_stream(c10::DeviceIndex device);
  // The streams of the pool, and the default one.
  std::vector<LockstepGpuStream*> streams_of(c10::DeviceIndex device) const;

  // A device's random number generators, both of the CPU's type: LibTorch's
  // default one, and the one for graphs, which each launch starts from the
  // default one's present state.
  struct Generators {
    at::Generator usual, of_graphs;
  };
  const Generators& generators(c10::DeviceIndex device);

  c10::DataPtr allocate(std::size_t bytes);
  // Reuse of `memory` also waits for the work that `stream` has when it is
  // freed.
  void keep_for(const c10::DataPtr& memory, LockstepGpuStream* stream);
  // Returns freed blocks to the FakeGpu.
  void empty_cache();
  std::size_t blocks() const;
  std::size_t allocated_on(int device) const;
  void set_room(int device, std::size_t bytes);

 private:
  static constexpr std::size_t kStreamsOfPool = 32;
  struct Pool {
    std::vector<std::unique_ptr<GpuStream>> streams = {};
    std::size_t given = 0;  // streams given out again
  };
  struct Block {
    void* memory;
    std::size_t bytes;
    c10::DeviceIndex device;
    LockstepGpuStream* stream;                    // of its allocation
    std::vector<LockstepGpuStream*> others = {};  // by record_stream()
    // Whether a graph may still use it after all others have freed it.
    bool captured = false;
    std::vector<std::byte> poison = {};
  };
  void check_room(c10::DeviceIndex device, std::size_t bytes) const;
  void give_back(Block& block);
  void poison(Block& block);
  static void delete_block(void* block);

  FakeGpu& gpu_;
  mutable Mutex mutex_;
  std::map<c10::DeviceIndex, Pool> pools_ LOCKSTEP_GUARDED_BY(mutex_);
  std::map<c10::DeviceIndex, Generators> generators_
      LOCKSTEP_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<Block>> given_back_ LOCKSTEP_GUARDED_BY(mutex_);
  std::size_t blocks_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
  std::map<int, std::size_t> allocated_ LOCKSTEP_GUARDED_BY(mutex_);
  // Bytes that tensors of a device use, and may use: unlimited without an
  // entry.
  std::map<int, std::size_t> used_ LOCKSTEP_GUARDED_BY(mutex_);
  std::map<int, std::size_t> room_ LOCKSTEP_GUARDED_BY(mutex_);
};

// The id of the capture that `stream` is in, even an invalid one; 0: no
// capture.
std::uint64_t capture_of(const Gpu& device, LockstepGpuStream* stream);

LockstepGpuStream* native(c10::Stream stream);
// The calling thread's current stream on `device`.
LockstepGpuStream* current_fake_stream(c10::Device device);
// Returns when all work of `stream` is done, but without ordering: for the
// FakeGpu's checks the calling thread does not know it.
void await_fake_stream(const Gpu& gpu, LockstepGpuStream* stream);

// For the calling thread, which is about to carry out a kernel. The bits of a
// product depend on how many threads the CPU uses for it; with LibTorch's
// default that is another number in a rank's thread, in one of autograd's and
// in one that replays a graph. Those of a GPU do not depend on who asks.
inline void compute_on_one_thread() {
  set_openmp_threads(1);
  set_mkl_threads(1);
}

const c10::impl::DeviceGuardImplInterface* fake_cuda_guard();
class DeviceGraph;
std::shared_ptr<DeviceGraph> make_fake_cuda_graph(c10::Device device);
// Registers what LibTorch calls on the device.
void install_fake_cuda_kernels();

}  // namespace lockstep
