#include "lockstep/torch/device_graph.h"

#include <atomic>

#include "lockstep/base/error.h"

#ifdef LOCKSTEP_TORCH_CUDA
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "lockstep/base/log.h"
#endif

namespace lockstep {
namespace {

std::atomic<MakeDeviceGraph> maker{nullptr};

#ifdef LOCKSTEP_TORCH_CUDA

Device as_device(c10::Device device) {
  return {DeviceKind::kCuda, device.index()};
}

class LibTorchGraph final : public DeviceGraph {
 public:
  explicit LibTorchGraph(c10::Device device)
      : DeviceGraph(as_device(device)), device_(device) {}

  // Other threads may go on with what a capture forbids: groups look at events,
  // autograd's threads allocate.
  void begin_capture() override {
    in_words([&] {
      graph_.capture_begin({0, 0}, cudaStreamCaptureModeThreadLocal);
    });
  }
  void end_capture() override {
    in_words([&] { graph_.capture_end(); });
  }

  void launch(void* stream) override {
    const c10::cuda::CUDAStreamGuard guard(
        stream == nullptr
            ? c10::cuda::getDefaultCUDAStream(device_.index())
            : c10::cuda::getStreamFromExternal(
                  static_cast<cudaStream_t>(stream), device_.index()));
    graph_.replay();
  }

  void end() noexcept override try {
    graph_.reset();
  } catch (const std::exception& error) {
    log(LogLevel::kDebug, error.what());
  }

 private:
  template <class Action>
  static void in_words(const Action& action) {
    try {
      action();
    } catch (const c10::Error& error) {
      throw InvalidArgument(
          std::string("the device's work cannot be captured: ") +
          error.what_without_backtrace() +
          "\n  next:    leave out what waits for the device or copies to the "
          "host, or do without --cuda-graph");
    }
  }

  const c10::Device device_;
  at::cuda::CUDAGraph graph_;
};

std::shared_ptr<DeviceGraph> make_of_libtorch(c10::Device device) {
  return std::make_shared<LibTorchGraph>(device);
}

#else

std::shared_ptr<DeviceGraph> make_of_libtorch(c10::Device device) {
  throw InvalidArgument("what is done on " + device.str() +
                        " cannot be captured: this LibTorch has no CUDA\n"
                        "  next:    build with ./dev build --cuda");
}

#endif

}  // namespace

std::shared_ptr<DeviceGraph> make_device_graph(c10::Device device) {
  if (!device.is_cuda())
    throw InvalidArgument("a graph is captured on a GPU, not on " +
                          device.str());
  const MakeDeviceGraph make = maker.load();
  return make != nullptr ? make(device) : make_of_libtorch(device);
}

void make_device_graphs_by(MakeDeviceGraph make) { maker.store(make); }

}  // namespace lockstep
