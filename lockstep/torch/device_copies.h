// Copies between the host and a device beside what the device computes: neither
// keeps the other waiting. On the CPU there is nothing to do.
//
// A GPU copies by itself from and to page-locked memory, which LibTorch keeps
// for reuse. Where a LibTorch has none, copies are right, but wait.
//
// Threads: an object belongs to one thread at a time.
// Errors:  what LibTorch throws where memory is short.
// Source:  torch.utils.data's pin_memory, and the prefetcher of NVIDIA's
//          examples for ImageNet.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <optional>

namespace lockstep {

// To a device, by a stream of its own: so what it is given next is copied while
// it still computes with what it was given before.
class CopiesToDevice {
 public:
  explicit CopiesToDevice(c10::Device device);

  // The elements of `tensor`, which is on the host, on the device: there before
  // what the current stream is given from now on. Returns before they are;
  // `tensor` may be changed at once. On the CPU it is `tensor`.
  at::Tensor copy(const at::Tensor& tensor);

 private:
  c10::Device device_;
  std::optional<c10::Stream> stream_;  // nothing on the CPU
};

// A tensor on its way to the host.
class CopyToHost {
 public:
  // Begins when what the current stream has been given by now is done.
  explicit CopyToHost(const at::Tensor& tensor);

  // Waits for it, and for nothing that the device was given later.
  const at::Tensor& wait() const;

 private:
  at::Tensor copy_;
  std::optional<c10::Event> arrived_;  // nothing on the CPU
};

}  // namespace lockstep
