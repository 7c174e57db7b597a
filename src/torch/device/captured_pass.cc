#include <ATen/ops/empty_like.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/torch/gpu_pass.h"
#include "src/base/log.h"
#include "src/comm/group/group_core.h"
#include "src/torch/device/device_graph.h"
#include "src/torch/device/device_streams.h"

namespace lockstep {
namespace {

// The first pass gives a new plan of buckets, the second makes them; a third
// lets libraries choose kernels by trial.
constexpr int kPassesBefore = 3;

bool lies_at(const at::Tensor& place, const at::Tensor& tensor) {
  return tensor.const_data_ptr() == place.const_data_ptr() &&
         tensor.sizes() == place.sizes() &&
         tensor.strides() == place.strides() &&
         tensor.scalar_type() == place.scalar_type();
}

at::Tensor place_of(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.variable_data() : at::Tensor();
}

}  // namespace

StreamOfItsOwn::StreamOfItsOwn(c10::Device device) : device_(device) {
  if (device.is_cpu()) return;
  const c10::impl::VirtualGuardImpl guard(device.type());
  const c10::Stream own = guard.getStreamFromGlobalPool(device);
  before_ = guard.getStream(device);
  order_streams(*before_, own);
  guard.exchangeStream(own);
}

StreamOfItsOwn::~StreamOfItsOwn() {
  if (!before_) return;
  try {
    const c10::Stream own =
        c10::impl::VirtualGuardImpl(device_.type()).exchangeStream(*before_);
    order_streams(own, *before_);
  } catch (const std::exception& error) {
    log(LogLevel::kDebug, error.what());
  }
}

CapturedPass::CapturedPass(std::shared_ptr<ProcessGroup> group,
                           std::vector<at::Tensor> parameters, Pass pass)
    : group_(std::move(group)),
      parameters_(std::move(parameters)),
      pass_(std::move(pass)) {}

// Whether `inputs` have the shapes that are captured, or will be.
bool CapturedPass::fits(at::TensorList inputs) const {
  return !inputs_.empty() &&
         std::ranges::equal(inputs, inputs_, [](const auto& a, const auto& b) {
           return a.sizes() == b.sizes() && a.strides() == b.strides() &&
                  a.scalar_type() == b.scalar_type() &&
                  a.device() == b.device();
         });
}

std::vector<at::Tensor> CapturedPass::run(at::TensorList inputs) {
  replayed_ = false;
  if (!fits(inputs) && !takes_over(inputs)) return pass_(inputs);
  if (passes_ < kPassesBefore) {
    ++passes_;
    return pass_(inputs);
  }
  check_stream_and_gradients(inputs);
  if (!graph_) capture(inputs.front().device());
  for (std::size_t i = 0; i < inputs.size(); ++i) inputs_[i].copy_(inputs[i]);
  check_places();
  hand_out_gradients();
  group_->core().replay(graph_, options("a captured pass")).wait();
  // The graph writes without autograd's knowledge.
  for (const at::Tensor& gradient : gradients_)
    if (gradient.defined()) gradient.unsafeGetTensorImpl()->bump_version();
  replayed_ = true;
  return outputs_;
}

// A run may begin with a short batch, and whole ones are more frequent.
bool CapturedPass::takes_over(at::TensorList inputs) {
  if (graph_) return false;
  if (!inputs_.empty() && inputs.front().numel() <= inputs_.front().numel())
    return false;
  inputs_.clear();
  for (const at::Tensor& input : inputs)
    inputs_.push_back(at::empty_like(input));
  passes_ = 0;
  return true;
}

void CapturedPass::check_stream_and_gradients(at::TensorList inputs) const {
  const at::Device device = inputs.front().device();
  if (!device.is_cuda() || current_stream_on(device).id() == 0)
    throw InvalidArgument(
        "a pass can be captured only on a GPU, on a stream other than the "
        "default one"
        "\n  next:    make a StreamOfItsOwn before the model is wrapped, and "
        "keep it");
  const bool clean = std::ranges::none_of(
      parameters_, [](const at::Tensor& it) { return it.grad().defined(); });
  if (!clean)
    throw InvalidArgument(
        "a captured pass overwrites gradients, and cannot accumulate them"
        "\n  next:    call zero_grad() before each pass");
}

CallOptions CapturedPass::options(std::string_view label) const {
  const c10::Stream stream = current_stream_on(inputs_.front().device());
  return {.label = label, .stream = stream.native_handle()};
}

void CapturedPass::capture(at::Device device) {
  const c10::DeviceGuard guard(device);
  const auto graph = make_device_graph(device);
  try {
    capture_pass(graph);
  } catch (...) {
    outputs_.clear();
    for (const at::Tensor& parameter : parameters_)
      parameter.mutable_grad() = at::Tensor();
    throw;
  }
  for (const at::Tensor& parameter : parameters_) {
    gradients_.push_back(parameter.grad());
    gradient_places_.push_back(place_of(parameter.grad()));
    parameter_places_.push_back(place_of(parameter));
  }
  graph_ = graph;
}

// The graph would go on to read the old memory.
void CapturedPass::check_places() const {
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    if (!lies_at(parameter_places_[i], parameters_[i]))
      throw InvalidArgument(
          "parameter " + std::to_string(i) +
          " has moved to other memory since the pass was captured, as "
          "set_data() and to() move it"
          "\n  next:    write new values by copy_(), or make the CapturedPass "
          "anew");
}

// A program may have given a gradient other memory since the last pass.
void CapturedPass::hand_out_gradients() {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const at::Tensor& place = gradient_places_[i];
    if (place.defined() && !lies_at(place, gradients_[i]))
      gradients_[i] = place.variable_data();
    parameters_[i].mutable_grad() = gradients_[i];
  }
}

// The pass's own exception says more than a failed capture's.
void CapturedPass::capture_pass(const std::shared_ptr<DeviceGraph>& graph) {
  graph->begin_capture();
  std::exception_ptr error;
  try {
    group_->core().attach(graph, options("a captured pass"));
    const CaptureScope capture;
    outputs_ = pass_(inputs_);
  } catch (...) {
    error = std::current_exception();
  }
  try {
    graph->end_capture();
  } catch (...) {
    if (!error) throw;
  }
  if (!error) return;
  try {
    std::rethrow_exception(error);
  } catch (...) {
    rethrow_uncapturable();
  }
}

}  // namespace lockstep
