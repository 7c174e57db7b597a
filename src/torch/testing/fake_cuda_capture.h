// FakeCuda's kernels while they are captured instead of run: again the CPU's,
// over the contents of the device's memory when the graph is launched.
//
// Threads: any.
// Errors:  InvalidArgument, which also invalidates the capture, for calls that
//          make the host wait for the device.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace lockstep {

// The bytes on the device from a tensor's first element to its last, gaps
// included.
struct Extent {
  explicit Extent(const at::Tensor& tensor)
      : begin(static_cast<std::byte*>(
            tensor.unsafeGetTensorImpl()->mutable_data())),
        elements(tensor.numel() == 0 ? 0 : 1) {
    for (std::int64_t i = 0; elements > 0 && i < tensor.dim(); ++i)
      elements += (tensor.size(i) - 1) * tensor.stride(i);
    bytes = static_cast<std::size_t>(elements) * tensor.itemsize();
  }
  std::byte* begin;
  std::int64_t elements;
  std::size_t bytes = 0;
};

// Whether the current stream of its device, a GPU, is captured.
bool is_captured(const at::Tensor& tensor);
// The same for the first GPU tensor among the operation's arguments.
bool is_captured(const c10::OperatorHandle& operation,
                 const torch::jit::Stack& stack);

at::Tensor& capture_copy(at::Tensor& to, const at::Tensor& from);
void capture_kernel(const c10::OperatorHandle& operation,
                    torch::jit::Stack* stack);

}  // namespace lockstep
