// The kernels of FakeCuda: its own for memory, views and copies, the CPU's for
// all others.
#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <optional>
#include <tuple>

#include "src/torch/testing/fake_cuda_capture.h"
#include "src/torch/testing/fake_cuda_state.h"

namespace lockstep {
namespace {

constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::CUDA);

class Allocator final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    return FakeCudaState::current().allocate(bytes);
  }
  void copy_data(void*, const void*, std::size_t) const override {
    TORCH_CHECK(false, "no test needs this");
  }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {
    FakeCudaState::current().empty_cache();
  }
  void recordStream(const c10::DataPtr& memory, c10::Stream stream) override {
    FakeCudaState::current().keep_for(memory, native(stream));
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(
      c10::DeviceIndex) override {
    return {};
  }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex) override {}
};

Allocator* allocator() {
  static auto* const it = new Allocator();
  return it;
}

at::ScalarType type_or_default(std::optional<at::ScalarType> type) {
  return c10::dtype_or_default(type);
}

at::Tensor new_empty(at::IntArrayRef size, std::optional<at::ScalarType> type,
                     std::optional<at::Layout>,
                     std::optional<at::Device> device, std::optional<bool>,
                     std::optional<at::MemoryFormat> memory_format) {
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_generic(size, allocator(), kKeys,
                                   type_or_default(type), memory_format);
}

at::Tensor new_strided(at::IntArrayRef size, at::IntArrayRef stride,
                       std::optional<at::ScalarType> type,
                       std::optional<at::Layout>,
                       std::optional<at::Device> device, std::optional<bool>) {
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_strided_generic(size, stride, allocator(), kKeys,
                                           type_or_default(type));
}

const at::Tensor& resized(const at::Tensor& self, at::IntArrayRef size,
                          std::optional<at::MemoryFormat>) {
  const c10::DeviceGuard guard(self.device());
  c10::StorageImpl* const storage = self.storage().unsafeGetStorageImpl();
  const std::size_t bytes =
      at::detail::computeStorageNbytesContiguous(size, self.itemsize());
  if (bytes > storage->nbytes()) {
    storage->set_data_ptr(allocator()->allocate(bytes));
    storage->set_nbytes(bytes);
  }
  self.unsafeGetTensorImpl()->set_sizes_contiguous(size);
  return self;
}

// Copies between the host and the device, on the current stream.
class Transfer {
 public:
  explicit Transfer(const at::Tensor& on_device)
      : device_(on_device.device()),
        extent_(on_device),
        host_(at::empty(
            {extent_.elements},
            on_device.options().device(at::kCPU).requires_grad(false))),
        strided_(host_.as_strided(on_device.sizes(), on_device.strides(), 0)) {}

  // Has the tensor's shape and strides.
  at::Tensor& host() { return strided_; }
  void to_host() { copy(host_.mutable_data_ptr(), extent_.begin); }
  void to_device() { copy(extent_.begin, host_.const_data_ptr()); }

 private:
  void copy(void* to, const void* from) {
    if (extent_.bytes == 0) return;
    FakeCudaState& state = FakeCudaState::current();
    const Gpu gpu = state.device(device_.index());
    const GpuScope scope(gpu);
    LockstepGpuStream* const stream = current_fake_stream(device_);
    LockstepGpuOutcome outcome{};
    gpu.check(gpu.table().copy(to, from, extent_.bytes, stream, &outcome),
              outcome, "copy");
    await_fake_stream(gpu, stream);
    state.fake().forget(host_.const_data_ptr(), extent_.bytes);
  }

  const at::Device device_;
  const Extent extent_;
  at::Tensor host_, strided_;
};

at::Tensor on_host(const at::Tensor& tensor) {
  if (!tensor.is_cuda()) return tensor;
  Transfer transfer(tensor);
  transfer.to_host();
  return transfer.host();
}

at::Tensor& copied(at::Tensor& self, const at::Tensor& from, bool) {
  if (is_captured(self) || is_captured(from)) return capture_copy(self, from);
  const at::Tensor elements = on_host(from);
  if (!self.is_cuda()) return self.copy_(elements);
  Transfer transfer(self);
  if (!self.is_non_overlapping_and_dense()) transfer.to_host();
  transfer.host().copy_(elements);
  transfer.to_device();
  return self;
}

at::Tensor copied_and_resized(const at::Tensor& from, const at::Tensor& to) {
  if (to.sizes() != from.sizes()) resized(to, from.sizes(), {});
  at::Tensor self = to;
  copied(self, from, false);
  return to;
}

void kept_for_stream(at::Tensor& self, c10::Stream stream) {
  fake_cuda_guard()->recordDataPtrOnStream(self.storage().data_ptr(), stream);
}

void on_cpu(const c10::OperatorHandle& operation, torch::jit::Stack* stack) {
  if (is_captured(operation, *stack)) return capture_kernel(operation, stack);
  compute_on_one_thread();
  at::native::cpu_fallback(operation, stack);
}

// Draws from the device's generator, unless the call has another.
void drawn_on_cpu(const c10::OperatorHandle& operation,
                  torch::jit::Stack* stack) {
  c10::IValue& generator = stack->back();
  if (generator.isNone()) {
    const std::size_t count = operation.schema().arguments().size();
    const at::Tensor& self = torch::jit::peek(*stack, 0, count).toTensor();
    const auto& generators =
        FakeCudaState::current().generators(self.device().index());
    generator = is_captured(self) ? generators.of_graphs : generators.usual;
  }
  on_cpu(operation, stack);
}

// The CPU's kernel would draw from the CPU's generator.
std::tuple<at::Tensor, at::Tensor> dropped(const at::Tensor& input,
                                           double probability,
                                           std::optional<bool>) {
  const double keep = 1 - probability;
  const at::Tensor mask =
      at::empty(input.sizes(), input.options().dtype(at::kBool));
  mask.bernoulli_(keep);
  return {at::mul(at::mul(input, mask), 1 / keep), mask};
}

}  // namespace

void install_fake_cuda_kernels() {
  c10::SetAllocator(c10::kCUDA, allocator());
  constexpr auto kKey = c10::DispatchKey::CUDA;
  static torch::Library aten(torch::Library::IMPL, "aten", kKey, __FILE__,
                             __LINE__);
  static torch::Library all(torch::Library::IMPL, "_", kKey, __FILE__,
                            __LINE__);
  aten.impl("empty.memory_format", &new_empty);
  aten.impl("empty_strided", &new_strided);
  aten.impl("resize_", &resized);
  aten.impl("as_strided", &at::native::as_strided_tensorimpl);
  aten.impl("view",
            static_cast<at::Tensor (*)(const at::Tensor&, at::IntArrayRef)>(
                &at::native::view));
  aten.impl("_reshape_alias", &at::native::_reshape_alias);
  aten.impl("unfold", &at::native::unfold);
  aten.impl("copy_", &copied);
  aten.impl("native_dropout", &dropped);
  aten.impl("bernoulli_.float",
            torch::CppFunction::makeFromBoxedFunction<&drawn_on_cpu>());
  aten.impl("_copy_from_and_resize", &copied_and_resized);
  aten.impl("record_stream", &kept_for_stream);
  all.fallback(torch::CppFunction::makeFromBoxedFunction<&on_cpu>());
}

}  // namespace lockstep
