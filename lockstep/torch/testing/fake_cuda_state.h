// What FakeCuda's parts share: the FakeGpu, and which device and streams a
// thread of the host uses on it.
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

#include "lockstep/base/mutex.h"
#include "lockstep/comm/nccl/gpu.h"
#include "lockstep/comm/testing/fake_gpu.h"

namespace lockstep {

class FakeCudaState {
 public:
  explicit FakeCudaState(FakeGpu& gpu) : gpu_(gpu) {}
  ~FakeCudaState();
  FakeCudaState(const FakeCudaState&) = delete;
  FakeCudaState& operator=(const FakeCudaState&) = delete;

  // The one that there is; Error when there is none.
  static FakeCudaState& current();
  static void set_current(FakeCudaState* state);

  FakeGpu& fake() { return gpu_; }
  Gpu device(c10::DeviceIndex index) const { return {gpu_.table(), index}; }

  // Of the calling thread: where it allocates, also from one of these objects
  // to the next, and the current streams by device, where not the default ones.
  static c10::DeviceIndex& device_in_use();
  using Streams = std::map<c10::DeviceIndex, LockstepGpuStream*>;
  Streams& streams();

  // Lives as long as this object. As LibTorch's, a device's pool has 32, which
  // it then gives again.
  LockstepGpuStream* new_stream(c10::DeviceIndex device);
  // Those, and the default one.
  std::vector<LockstepGpuStream*> streams_of(c10::DeviceIndex device) const;

  // What a device draws from, generators of the CPU's both: LibTorch's default
  // one, and the one that graphs draw from, which each launch has continue as
  // the default one was when the host came to it.
  struct Generators {
    at::Generator usual, of_graphs;
  };
  const Generators& generators(c10::DeviceIndex device);

  c10::DataPtr allocate(std::size_t bytes);
  // Also after what `stream` has been given by then.
  void keep_for(const c10::DataPtr& memory, LockstepGpuStream* stream);
  // What was given back goes back to the FakeGpu, which then has enough again.
  void empty_cache();
  std::size_t blocks() const;
  std::size_t allocated_on(int device) const;
  void set_room(int device, std::size_t bytes);

 private:
  static constexpr std::size_t kStreamsOfPool = 32;
  struct Pool {
    std::vector<std::unique_ptr<GpuStream>> streams = {};
    std::size_t given = 0;  // a second time
  };
  struct Block {
    void* memory;
    std::size_t bytes;
    c10::DeviceIndex device;
    LockstepGpuStream* stream;                    // of its allocation
    std::vector<LockstepGpuStream*> others = {};  // by record_stream()
    // Whether a graph may use it, whoever else has let go of it.
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
  // Bytes that tensors of a device have, and may have: any number where it is
  // not there.
  std::map<int, std::size_t> used_ LOCKSTEP_GUARDED_BY(mutex_);
  std::map<int, std::size_t> room_ LOCKSTEP_GUARDED_BY(mutex_);
};

// Which capture `stream` of `device` is in, be it spoilt; 0: none.
std::uint64_t capture_of(const Gpu& device, LockstepGpuStream* stream);

LockstepGpuStream* native(c10::Stream stream);
// The calling thread's on `device`.
LockstepGpuStream* current_fake_stream(c10::Device device);
// Returns when all that `stream` was given is done, which the calling thread
// does not know from that: it orders nothing.
void await_fake_stream(const Gpu& gpu, LockstepGpuStream* stream);

const c10::impl::DeviceGuardImplInterface* fake_cuda_guard();
class DeviceGraph;
std::shared_ptr<DeviceGraph> make_fake_cuda_graph(c10::Device device);
// Registers what LibTorch calls on the device.
void install_fake_cuda_kernels();

}  // namespace lockstep
