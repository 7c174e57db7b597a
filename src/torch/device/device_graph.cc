#include "src/torch/device/device_graph.h"

#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>
#include <c10/util/Exception.h>

#include <atomic>
#include <mutex>
#include <string>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/torch/gpu_pass.h"

#ifdef LOCKSTEP_TORCH_CUDA
#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>

#include "src/base/log.h"
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

  // Other threads may do what a capture forbids: groups query events,
  // autograd's threads allocate.
  void begin_capture() override {
    const c10::DeviceGuard guard(device_);
    in_words(
        [&] { graph_.capture_begin(pool_, cudaStreamCaptureModeThreadLocal); });
    in_capture_ = true;
  }
  void end_capture() override {
    const c10::DeviceGuard guard(device_);
    try {
      in_words([&] { graph_.capture_end(); });
    } catch (...) {
      give_up_capture();
      throw;
    }
    captured();
  }

  void launch(void* stream) override {
    const c10::StreamGuard guard(
        stream == nullptr
            ? c10::cuda::getDefaultCUDAStream(device_.index()).unwrap()
            : c10::cuda::getStreamFromExternal(
                  static_cast<cudaStream_t>(stream), device_.index())
                  .unwrap());
    graph_.replay();
  }

 private:
  void free() noexcept override {
    attempt([&] { graph_.reset(); });
  }

  // After a capture that made no graph, LibTorch leaves its allocator and its
  // generator in capture mode: memory that other streams used would never be
  // free again, and the generator could no longer draw.
  void give_up_capture() noexcept {
    if (!std::exchange(in_capture_, false)) return;
    attempt([&] { release_pool(); });
    attempt([&] {
      at::Generator generator =
          at::cuda::detail::getDefaultCUDAGenerator(device_.index());
      const std::scoped_lock lock(generator.mutex());
      generator.graphsafe_set_state(generator.clone());
    });
  }

  // If the failure came after LibTorch's capture_end() had ended the
  // allocation, ending it again throws, and reset() releases the pool:
  // releasing it twice would corrupt the allocator.
  void release_pool() {
    const c10::DeviceIndex index = device_.index();
    c10::cuda::CUDACachingAllocator::endAllocateToPool(index, pool_);
    c10::cuda::CUDACachingAllocator::releasePool(index, pool_);
  }

  template <class Action>
  static void attempt(const Action& action) noexcept try {
    action();
  } catch (const std::exception& error) {
    log(LogLevel::kDebug, error.what());
  }

  template <class Action>
  static void in_words(const Action& action) {
    try {
      action();
    } catch (...) {
      rethrow_uncapturable();
    }
  }

  const c10::Device device_;
  const at::cuda::MempoolId_t pool_ = at::cuda::graph_pool_handle();
  at::cuda::CUDAGraph graph_;
  bool in_capture_ = false;  // or one that has ended regularly
};

std::shared_ptr<DeviceGraph> make_of_libtorch(c10::Device device) {
  return std::make_shared<LibTorchGraph>(device);
}

#else

std::shared_ptr<DeviceGraph> make_of_libtorch(c10::Device device) {
  throw InvalidArgument("work on " + device.str() +
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

namespace {
std::atomic<int> captures{0};
}  // namespace

CaptureScope::CaptureScope() { ++captures; }
CaptureScope::~CaptureScope() { --captures; }
bool is_capturing() { return captures > 0; }

void make_device_graphs_by(MakeDeviceGraph make) { maker.store(make); }

void rethrow_uncapturable() {
  try {
    throw;
  } catch (const c10::Error& error) {
    if (is_out_of_memory(error)) throw;
    throw InvalidArgument(
        std::string("the device's work cannot be captured: ") +
        error.what_without_backtrace() +
        "\n  next:    remove code that waits for the device or copies to the "
        "host, or run without a graph");
  }
}

}  // namespace lockstep
