// The devices, streams and events of FakeCuda, for LibTorch.
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <chrono>
#include <cstdint>
#include <thread>

#include "lockstep/base/deadline.h"
#include "lockstep/base/error.h"
#include "src/torch/testing/fake_cuda_state.h"

namespace lockstep {
namespace {

// The largest number that a test uses. Autograd makes one thread per device,
// once.
constexpr c10::DeviceIndex kDevices = 4;
constexpr std::chrono::minutes kLongestWait{2};

c10::Stream as_stream(c10::Device device, LockstepGpuStream* stream) {
  return c10::Stream(c10::Stream::UNSAFE, device,
                     reinterpret_cast<c10::StreamId>(stream));
}

template <class Happened>
void wait_until(const Happened& happened) {
  const Deadline deadline(kLongestWait);
  while (!happened()) {
    if (deadline.expired())
      throw Error("a fake GPU's stream has not got on for two minutes");
    std::this_thread::yield();
  }
}

class Guard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return c10::kCUDA; }
  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device before = getDevice();
    setDevice(device);
    return before;
  }
  c10::Device getDevice() const override {
    return {c10::kCUDA, FakeCudaState::device_in_use()};
  }
  void setDevice(c10::Device device) const override {
    if (device.index() >= 0) FakeCudaState::device_in_use() = device.index();
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    setDevice(device);
  }
  c10::DeviceIndex deviceCount() const noexcept override { return kDevices; }

  c10::Stream getStream(c10::Device device) const override {
    return as_stream(device, current_fake_stream(device));
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return as_stream(device, nullptr);
  }
  c10::Stream getNewStream(c10::Device device, int) const override {
    return as_stream(device, state().new_stream(device.index()));
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    return getNewStream(device, 0);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const c10::Stream before = getStream(stream.device());
    state().streams()[stream.device_index()] = native(stream);
    return before;
  }
  void* getStreamNativeHandle(const c10::Stream stream) const override {
    return native(stream);
  }
  bool queryStream(const c10::Stream& stream) const override {
    const Gpu gpu = state().device(stream.device_index());
    const GpuScope scope(gpu);
    GpuEvent event(gpu);
    event.record(native(stream));
    return event.happened();
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    const Gpu gpu = state().device(stream.device_index());
    const GpuScope scope(gpu);
    GpuEvent event(gpu);
    event.record(native(stream));
    wait_until([&] { return event.happened(); });
  }
  void synchronizeDevice(const c10::DeviceIndex index) const override {
    const c10::Device device(c10::kCUDA, index);
    for (LockstepGpuStream* const stream : state().streams_of(index))
      synchronizeStream(as_stream(device, stream));
  }
  void recordDataPtrOnStream(const c10::DataPtr& memory,
                             const c10::Stream& stream) const override {
    state().keep_for(memory, native(stream));
  }

  void record(void** event, const c10::Stream& stream, c10::DeviceIndex,
              c10::EventFlag) const override {
    const Gpu gpu = state().device(stream.device_index());
    const GpuScope scope(gpu);
    if (*event == nullptr) *event = new GpuEvent(gpu);
    of(*event).record(native(stream));
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event == nullptr) return;
    const Gpu gpu = state().device(stream.device_index());
    const GpuScope scope(gpu);
    of(event).hold_up(native(stream));
  }
  bool queryEvent(void* event) const override {
    return event == nullptr || of(event).happened();
  }
  void synchronizeEvent(void* event) const override {
    if (event != nullptr) wait_until([&] { return of(event).happened(); });
  }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override {
    if (event != nullptr) delete &of(event);
  }

 private:
  static FakeCudaState& state() { return FakeCudaState::current(); }
  static GpuEvent& of(void* event) { return *static_cast<GpuEvent*>(event); }
};

}  // namespace

const c10::impl::DeviceGuardImplInterface* fake_cuda_guard() {
  static const Guard* const guard = new Guard();
  return guard;
}

LockstepGpuStream* native(c10::Stream stream) {
  return reinterpret_cast<LockstepGpuStream*>(stream.id());
}

LockstepGpuStream* current_fake_stream(c10::Device device) {
  const auto& streams = FakeCudaState::current().streams();
  const auto found = streams.find(device.index());
  return found == streams.end() ? nullptr : found->second;
}

std::uint64_t capture_of(const Gpu& device, LockstepGpuStream* stream) {
  const GpuScope scope(device);
  std::uint64_t capture = 0;
  LockstepGpuOutcome outcome{};
  const auto result = device.table().stream_capture(stream, &capture, &outcome);
  return result == kGpuSpoiltCapture ? ~std::uint64_t{0} : capture;
}

void await_fake_stream(const Gpu& gpu, LockstepGpuStream* stream) {
  const GpuScope scope(gpu);
  GpuEvent event(gpu);
  event.record(stream);
  FakeGpu& fake = FakeCudaState::current().fake();
  wait_until([&] { return fake.has_happened(event.get()); });
}

}  // namespace lockstep
