// LibTorch's device "cuda" made of a FakeGpu: tensors, modules, autograd,
// streams and events as on a GPU, on a machine and by a LibTorch without one.
//
//     FakeGpu gpu({.devices = 2});
//     FakeCuda cuda(gpu);
//     at::Tensor x = at::ones({3}, at::Device(at::kCUDA, 1));
//
// Kernels are the CPU's, over copies that go through the current stream: so a
// tensor's memory is read and written by that stream, as on a GPU, and what
// orders it too little after other streams is a violation of the FakeGpu's.
// Unlike on a GPU the host waits for each kernel, but that orders nothing: only
// streams and events do, and synchronize().
//
// Memory that is given back is filled with NaN by the stream that it was
// allocated on, as the one that may use it next, once the streams named by
// record_stream() are done with it. What others still do with it is a violation
// as well.
//
// Threads: one object at a time; its tensors, streams and events from any
//          thread. They end before it does, and it before the FakeGpu.
// Errors:  Error where LibTorch has a CUDA of its own: see possible().
#pragma once

#include <c10/core/Device.h>

#include <cstddef>

#include "lockstep/comm/testing/fake_gpu.h"

namespace lockstep {

class FakeCuda {
 public:
  // Whether LibTorch has no CUDA of its own.
  static bool possible();

  explicit FakeCuda(FakeGpu& gpu);
  ~FakeCuda();
  FakeCuda(const FakeCuda&) = delete;
  FakeCuda& operator=(const FakeCuda&) = delete;

  // Blocks of memory that tensors have.
  std::size_t blocks() const;
  // Whether none has, or soon none: autograd's threads drop what a pass has
  // used a moment after backward() has returned.
  bool all_given_back() const;
  // Those that `device` has given out since the beginning.
  std::size_t allocated_on(int device) const;

  // Lets tensors of `device` have at most so many bytes together from now on.
  // What does not fit is refused as by LibTorch: c10::OutOfMemoryError, with
  // how much there was.
  void set_room(int device, std::size_t bytes);
};

}  // namespace lockstep
