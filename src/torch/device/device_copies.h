// Copies between the host and a device that overlap with the device's
// computation. On the CPU they do nothing.
//
// A GPU copies asynchronously from and to page-locked memory, which LibTorch
// caches for reuse. With a LibTorch that has no such memory, copies are right,
// but wait.
//
// Threads: an object belongs to one thread at a time.
// Errors:  LibTorch's errors where memory is short.
// Source:  torch.utils.data's pin_memory, and the prefetcher of NVIDIA's
//          examples for ImageNet.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <optional>

namespace lockstep {

// Copies to a device on a stream of its own: the next batch is copied while the
// device still computes on the one before.
class CopiesToDevice {
 public:
  explicit CopiesToDevice(c10::Device device);

  // A copy of the host's `tensor` on the device. It comes before later work of
  // the current stream; the call returns before it is done, and the caller may
  // change `tensor` at once. On the CPU it is `tensor` itself.
  at::Tensor copy(const at::Tensor& tensor);

 private:
  c10::Device device_;
  std::optional<c10::Stream> stream_;  // empty on the CPU
};

// A tensor on its way to the host.
class CopyToHost {
 public:
  // The copy begins when the current stream's work so far is done.
  explicit CopyToHost(const at::Tensor& tensor);

  // Waits for the copy, and not for later work of the device.
  const at::Tensor& wait() const;

 private:
  at::Tensor copy_;
  std::optional<c10::Event> arrived_;  // empty on the CPU
};

}  // namespace lockstep
