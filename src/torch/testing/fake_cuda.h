// LibTorch's device "cuda" made of a FakeGpu: tensors, modules, autograd,
// streams and events as on a GPU, on a machine and by a LibTorch without one.
//
//     FakeGpu gpu({.devices = 2});
//     FakeCuda cuda(gpu);
//     at::Tensor x = at::ones({3}, at::Device(at::kCUDA, 1));
//
// Kernels are the CPU's, over copies that go through the current stream: so
// that stream reads and writes a tensor's memory, as on a GPU, and the FakeGpu
// reports a violation where it is not ordered after other streams. Unlike on a
// GPU the host waits for each kernel, but that orders nothing: only streams,
// events and synchronize() do.
//
// The stream that allocated a block fills it with NaN when it is freed, since
// that stream may use it next, once the streams named by record_stream() are
// done with it. Later use by other streams is a violation as well.
//
// Threads: one object at a time; its tensors, streams and events from any
//          thread. They are destroyed before it, and it before the FakeGpu.
// Errors:  Error where LibTorch has a CUDA of its own: see possible().
#pragma once

#include <c10/core/Device.h>

#include <cstddef>

#include "src/comm/testing/fake_gpu/fake_gpu.h"

namespace lockstep {

class FakeCuda {
 public:
  // Whether LibTorch has no CUDA of its own.
  static bool possible();

  explicit FakeCuda(FakeGpu& gpu);
  ~FakeCuda();
  FakeCuda(const FakeCuda&) = delete;
  FakeCuda& operator=(const FakeCuda&) = delete;

  // Blocks of memory that tensors hold.
  std::size_t blocks() const;
  // Whether all blocks are freed, now or soon: autograd's threads free a pass's
  // memory a moment after backward() has returned.
  bool all_given_back() const;
  // Blocks that `device` has allocated since the beginning.
  std::size_t allocated_on(int device) const;

  // Limits the tensors of `device` to `bytes` in total from now on. An
  // allocation that does not fit throws as LibTorch's do:
  // c10::OutOfMemoryError, with the free size.
  void set_room(int device, std::size_t bytes);
};

}  // namespace lockstep
