#include "src/torch/device/device_streams.h"

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <exception>

#include "src/base/log.h"

namespace lockstep {
void order_streams(const c10::Stream& earlier, const c10::Stream& later) {
  c10::Event event(earlier.device_type());
  event.record(earlier);
  event.block(later);
}

c10::Stream current_stream_on(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

void DeviceStreams::add_current(c10::Device device) {
  if (device.is_cpu()) return;
  const c10::Stream stream = current_stream_on(device);
  if (std::ranges::find(streams_, stream) == streams_.end())
    streams_.push_back(stream);
}

bool DeviceStreams::hold_up_current(c10::Device device) {
  if (streams_.empty()) return false;
  const c10::Stream current = current_stream_on(device);
  bool others = false;
  for (const c10::Stream& stream : streams_) {
    if (stream == current) continue;
    order_streams(stream, current);
    others = true;
  }
  streams_.clear();
  return others;
}

void DeviceStreams::follow_current(c10::Device device) {
  if (streams_.empty()) return;
  const c10::Stream current = current_stream_on(device);
  for (const c10::Stream& stream : streams_)
    if (stream != current) order_streams(current, stream);
  streams_.clear();
}

void await_device(c10::Device device) noexcept try {
  c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
} catch (const std::exception& error) {
  log(LogLevel::kDebug, error.what());
}

void keep_for_current_stream(at::TensorList tensors) {
  for (const at::Tensor& tensor : tensors)
    c10::impl::VirtualGuardImpl(tensor.device().type())
        .recordDataPtrOnStream(tensor.storage().data_ptr(),
                               current_stream_on(tensor.device()));
}

}  // namespace lockstep
