#include "src/torch/testing/fake_cuda_capture.h"

#include <ATen/core/List.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/zeros.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <cstring>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "src/comm/testing/fake_gpu/fake_gpu_graph.h"
#include "src/comm/testing/fake_gpu/fake_gpu_stream.h"
#include "src/torch/device/device_graph.h"
#include "src/torch/testing/fake_cuda_state.h"

namespace lockstep {
namespace {

using Stack = torch::jit::Stack;

// A tensor's bytes on the device, and their layout; like a graph, it keeps no
// memory alive.
struct Place : Extent {
  explicit Place(const at::Tensor& tensor)
      : Extent(tensor),
        sizes(tensor.sizes().vec()),
        strides(tensor.strides().vec()),
        options(tensor.options().device(at::kCPU).requires_grad(false)) {}

  // A host tensor with its shape and strides; `block` holds the bytes.
  at::Tensor twin(at::Tensor* block) const {
    *block = at::zeros({elements}, options);
    return block->as_strided(sizes, strides, 0);
  }
  MemoryUse use(MemoryUse::Kind kind) const { return {kind, begin, bytes}; }

  std::vector<std::int64_t> sizes, strides;
  at::TensorOptions options;
};

// A scope for calls of the CPU's kernels, without autograd and autocast.
struct BelowAutograd {
  c10::impl::ExcludeDispatchKeyGuard autograd{
      c10::autograd_dispatch_keyset_with_ADInplaceOrView};
  c10::impl::ExcludeDispatchKeyGuard autocast{c10::autocast_dispatch_keyset};
};

using Change = std::function<at::Tensor(const at::Tensor&)>;

// `value` with `change` applied to each of its tensors.
c10::IValue with_tensors(const c10::IValue& value, const Change& change) {
  if (value.isTensor())
    return value.toTensor().defined() ? c10::IValue(change(value.toTensor()))
                                      : value;
  if (value.isTensorList()) {
    std::vector<at::Tensor> changed;
    for (const at::Tensor& tensor : value.toTensorVector())
      changed.push_back(tensor.defined() ? change(tensor) : tensor);
    return c10::IValue(changed);
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> changed;
    for (const std::optional<at::Tensor>& tensor :
         value.toOptionalTensorList()) {
      if (tensor && tensor->defined())
        changed.push_back(change(*tensor));
      else
        changed.push_back(tensor);
    }
    return c10::IValue(changed);
  }
  return value;
}

void for_tensors(const c10::IValue& value,
                 const std::function<void(const at::Tensor&)>& look) {
  with_tensors(value, [&](const at::Tensor& tensor) {
    look(tensor);
    return tensor;
  });
}

Stack last(const Stack& stack, std::size_t count) {
  return {stack.end() - static_cast<std::ptrdiff_t>(count), stack.end()};
}

std::optional<at::Device> device_of(const Stack& arguments) {
  std::optional<at::Device> found;
  for (const c10::IValue& value : arguments)
    for_tensors(value, [&](const at::Tensor& tensor) {
      if (!found && tensor.is_cuda()) found = tensor.device();
    });
  for (const c10::IValue& value : arguments)
    if (!found && value.isDevice() && value.toDevice().is_cuda())
      found = value.toDevice();
  return found;
}

bool is_capturing(at::Device device) {
  const Gpu gpu = FakeCudaState::current().device(device.index());
  return capture_of(gpu, current_fake_stream(device)) != 0;
}

[[noreturn]] void refuse(at::Device device, const std::string& what) {
  FakeCudaState& state = FakeCudaState::current();
  const Gpu gpu = state.device(device.index());
  const GpuScope scope(gpu);
  state.fake().spoil_capture(current_fake_stream(device), what);
  throw InvalidArgument(what + ", and the stream is captured");
}

void give(at::Device device, FakeKernel kernel) {
  FakeCudaState& state = FakeCudaState::current();
  const Gpu gpu = state.device(device.index());
  const GpuScope scope(gpu);
  state.fake().compute(std::move(kernel), current_fake_stream(device));
}

// A call of an operation, repeatable, with host twins of its arguments.
class CapturedCall {
 public:
  CapturedCall(const c10::OperatorHandle& operation, const Stack& arguments)
      : operation_(operation) {
    const auto& schema = operation.schema().arguments();
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      const auto* alias = schema[i].alias_info();
      const bool written = alias != nullptr && alias->isWrite();
      arguments_.push_back(
          with_tensors(arguments[i], [&](const at::Tensor& tensor) {
            // The host's tensors are captured by value.
            if (!tensor.is_cuda()) return tensor.clone();
            places_.emplace_back(tensor);
            written_.push_back(written);
            given_.push_back(tensor);
            return tensor;
          }));
    }
  }

  // Its results on the device: arguments, or new tensors.
  Stack results(at::Device device) {
    std::vector<at::Tensor> blocks, twins;
    const Stack of_host = call(Elements::kZeros, &blocks, &twins);
    Stack results;
    for (const c10::IValue& result : of_host) {
      if (!result.isTensor() && !result.isTensorList())
        refuse(device, operation_.schema().name() +
                           " copies from the device to the host");
      results.push_back(with_tensors(result, [&](const at::Tensor& tensor) {
        for (std::size_t i = 0; i < twins.size(); ++i)
          if (twins[i].is_same(tensor)) return given_[i];
        const at::Tensor made = at::empty_strided(
            tensor.sizes(), tensor.strides(), tensor.options().device(device));
        outputs_.emplace_back(made);
        return made;
      }));
    }
    given_.clear();
    for (c10::IValue& value : arguments_)
      value = with_tensors(value, [](const at::Tensor& tensor) {
        return tensor.is_cuda() ? at::Tensor(at::empty({0}, tensor.options()))
                                : tensor;
      });
    return results;
  }

  std::vector<MemoryUse> uses() const {
    std::vector<MemoryUse> uses;
    for (const Place& place : places_)
      uses.push_back(place.use(MemoryUse::Kind::kReads));
    for (std::size_t i = 0; i < places_.size(); ++i)
      if (written_[i]) uses.push_back(places_[i].use(MemoryUse::Kind::kWrites));
    for (const Place& place : outputs_)
      uses.push_back(place.use(MemoryUse::Kind::kWrites));
    return uses;
  }

  // Runs on the present contents of the device's memory.
  void carry_out() const {
    std::vector<at::Tensor> blocks, twins;
    const Stack of_host = call(Elements::kOfDevice, &blocks, &twins);
    for (std::size_t i = 0; i < places_.size(); ++i)
      if (written_[i] && places_[i].bytes != 0)
        std::memcpy(places_[i].begin, blocks[i].const_data_ptr(),
                    places_[i].bytes);
    std::size_t output = 0;
    for (const c10::IValue& result : of_host)
      for_tensors(result, [&](const at::Tensor& tensor) {
        for (const at::Tensor& twin : twins)
          if (twin.is_same(tensor)) return;
        write(outputs_.at(output++), tensor);
      });
  }

 private:
  // The contents of twins. A call with zeros only determines the results, and
  // draws no random numbers.
  enum class Elements { kZeros, kOfDevice };

  static void write(const Place& place, const at::Tensor& tensor) {
    at::Tensor block;
    place.twin(&block).copy_(tensor);
    if (place.bytes != 0)
      std::memcpy(place.begin, block.const_data_ptr(), place.bytes);
  }

  Stack call(Elements elements, std::vector<at::Tensor>* blocks,
             std::vector<at::Tensor>* twins) const {
    const BelowAutograd guard;
    Stack stack;
    for (const c10::IValue& value : arguments_)
      stack.push_back(with_tensors(value, [&](const at::Tensor& tensor) {
        if (!tensor.is_cuda()) return tensor;
        const Place& place = places_[blocks->size()];
        at::Tensor& block = blocks->emplace_back();
        twins->push_back(place.twin(&block));
        if (elements == Elements::kOfDevice && place.bytes != 0)
          std::memcpy(block.mutable_data_ptr(), place.begin, place.bytes);
        return twins->back();
      }));
    for (c10::IValue& value : stack) {
      if (value.isDevice()) value = at::Device(at::kCPU);
      if (value.isGenerator() && elements == Elements::kZeros)
        value = copy_of(value.toGenerator());
    }
    compute_on_one_thread();
    operation_.callBoxed(stack);
    return stack;
  }
  static at::Generator copy_of(at::Generator generator) {
    const std::scoped_lock lock(generator.mutex());
    return generator.clone();
  }

  const c10::OperatorHandle operation_;
  Stack arguments_;
  std::vector<Place> places_;  // of arguments on the device, in their order
  std::vector<bool> written_;
  std::vector<at::Tensor> given_;
  std::vector<Place> outputs_;  // new tensors
};

class FakeCudaGraph final : public DeviceGraph {
 public:
  explicit FakeCudaGraph(c10::Device device)
      : DeviceGraph({DeviceKind::kCuda, device.index()}), device_(device) {}

  void begin_capture() override {
    FakeCudaState& state = FakeCudaState::current();
    LOCKSTEP_CHECK(FakeCudaState::device_in_use() == device_.index(),
                   "LibTorch captures on the current device");
    const Gpu gpu = state.device(device_.index());
    const GpuScope scope(gpu);
    graph_ = std::make_shared<FakeGpuGraph>(
        state.fake(), CapturedGraph::device(), current_fake_stream(device_));
  }
  void end_capture() override {
    const Gpu gpu = FakeCudaState::current().device(device_.index());
    const GpuScope scope(gpu);
    graph_->end_capture();
    captured();
  }
  void launch(void* stream) override {
    continue_random_numbers(static_cast<LockstepGpuStream*>(stream));
    graph_->launch(stream);
  }

 private:
  void free() noexcept override { graph_->end(); }
  // As in LibTorch, a graph continues from the host generator's present state;
  // unlike LibTorch, the host's generator does not skip the graph's draws.
  void continue_random_numbers(LockstepGpuStream* stream) const {
    FakeCudaState& state = FakeCudaState::current();
    auto [usual, of_graphs] = state.generators(device_.index());
    const at::Tensor numbers = [&] {
      const std::scoped_lock lock(usual.mutex());
      return usual.get_state();
    }();
    const Gpu gpu = state.device(device_.index());
    const GpuScope scope(gpu);
    state.fake().compute({.compute =
                              [numbers, generator = of_graphs]() mutable {
                                const std::scoped_lock lock(generator.mutex());
                                generator.set_state(numbers);
                              },
                          .uses = {}},
                         stream);
  }

  const c10::Device device_;
  std::shared_ptr<FakeGpuGraph> graph_;
};

}  // namespace

bool is_captured(const at::Tensor& tensor) {
  return tensor.is_cuda() && is_capturing(tensor.device());
}

bool is_captured(const c10::OperatorHandle& operation, const Stack& stack) {
  const auto device =
      device_of(last(stack, operation.schema().arguments().size()));
  return device && is_capturing(*device);
}

at::Tensor& capture_copy(at::Tensor& to, const at::Tensor& from) {
  const at::Device device = to.is_cuda() ? to.device() : from.device();
  if (!to.is_cuda() || !from.is_cuda())
    refuse(device, "elements are copied between the host and the device");
  const Place source(from), target(to);
  const auto compute = [source, target] {
    const BelowAutograd guard;
    at::Tensor read, written;
    const at::Tensor elements = source.twin(&read);
    if (source.bytes != 0)
      std::memcpy(read.mutable_data_ptr(), source.begin, source.bytes);
    const at::Tensor place = target.twin(&written);
    if (target.bytes == 0) return;
    std::memcpy(written.mutable_data_ptr(), target.begin, target.bytes);
    place.copy_(elements);
    std::memcpy(target.begin, written.const_data_ptr(), target.bytes);
  };
  give(device, {.compute = compute,
                .uses = {source.use(MemoryUse::Kind::kReads),
                         target.use(MemoryUse::Kind::kWrites)}});
  return to;
}

void capture_kernel(const c10::OperatorHandle& operation, Stack* stack) {
  const std::size_t count = operation.schema().arguments().size();
  const Stack arguments = last(*stack, count);
  const at::Device device = *device_of(arguments);
  auto call = std::make_shared<CapturedCall>(operation, arguments);
  const Stack results = call->results(device);
  give(device,
       {.compute = [call] { call->carry_out(); }, .uses = call->uses()});
  torch::jit::drop(*stack, count);
  stack->insert(stack->end(), results.begin(), results.end());
}

std::shared_ptr<DeviceGraph> make_fake_cuda_graph(c10::Device device) {
  return std::make_shared<FakeCudaGraph>(device);
}

}  // namespace lockstep
