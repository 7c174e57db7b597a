#include "src/torch/device/device_copies.h"

#include <ATen/Context.h>
#include <ATen/ops/empty.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "src/torch/device/device_streams.h"

namespace lockstep {
namespace {

at::Tensor empty_on_host(const at::Tensor& like) {
  const auto options = like.options().device(at::kCPU);
  return at::empty(like.sizes(), options.pinned_memory(at::hasCUDA()));
}

}  // namespace

CopiesToDevice::CopiesToDevice(c10::Device device) : device_(device) {
  if (!device.is_cpu())
    stream_ = c10::impl::VirtualGuardImpl(device.type())
                  .getStreamFromGlobalPool(device);
}

at::Tensor CopiesToDevice::copy(const at::Tensor& tensor) {
  if (!stream_) return tensor;
  const at::Tensor from = empty_on_host(tensor);
  from.copy_(tensor);
  at::Tensor there;
  c10::Event arrived(device_.type());
  {
    const c10::StreamGuard guard(*stream_);
    there = from.to(device_, /*non_blocking=*/true);
    arrived.record(*stream_);
  }
  arrived.block(current_stream_on(device_));
  keep_for_current_stream({there});
  return there;
}

CopyToHost::CopyToHost(const at::Tensor& tensor) : copy_(tensor) {
  if (tensor.is_cpu()) return;
  copy_ = empty_on_host(tensor);
  copy_.copy_(tensor, /*non_blocking=*/true);
  arrived_.emplace(tensor.device().type());
  arrived_->record(current_stream_on(tensor.device()));
}

const at::Tensor& CopyToHost::wait() const {
  if (arrived_) arrived_->synchronize();
  return copy_;
}

}  // namespace lockstep
