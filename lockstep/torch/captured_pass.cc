#include "lockstep/torch/captured_pass.h"

#include <algorithm>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/torch/device_streams.h"

namespace lockstep {
namespace {

// Buckets are planned anew after the first pass and made in the second; a third
// for libraries that choose kernels by trying.
constexpr int kPassesBefore = 3;

}  // namespace

CapturedPass::CapturedPass(std::shared_ptr<ProcessGroup> group,
                           std::vector<at::Tensor> parameters, Pass pass)
    : group_(std::move(group)),
      parameters_(std::move(parameters)),
      pass_(std::move(pass)) {}

// Of the first shapes that come; before, of any.
bool CapturedPass::fits(at::TensorList inputs) const {
  return inputs_.empty() ||
         std::ranges::equal(inputs, inputs_, [](const auto& a, const auto& b) {
           return a.sizes() == b.sizes() && a.strides() == b.strides() &&
                  a.scalar_type() == b.scalar_type() &&
                  a.device() == b.device();
         });
}

std::vector<at::Tensor> CapturedPass::run(at::TensorList inputs) {
  replayed_ = false;
  if (!fits(inputs)) return pass_(inputs);
  if (inputs_.empty())
    for (const at::Tensor& input : inputs)
      inputs_.push_back(at::empty_like(input));
  if (passes_ < kPassesBefore) {
    ++passes_;
    return pass_(inputs);
  }
  if (!graph_) capture(inputs);
  for (std::size_t i = 0; i < inputs.size(); ++i) inputs_[i].copy_(inputs[i]);
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    parameters_[i].mutable_grad() = gradients_[i];
  group_->replay(graph_, {.place = "a captured pass"}).wait();
  replayed_ = true;
  return outputs_;
}

void CapturedPass::capture(at::TensorList inputs) {
  const at::Device device = inputs.front().device();
  if (!device.is_cuda() || current_stream_on(device).id() == 0)
    throw InvalidArgument(
        "a pass is captured on a GPU, on a stream that is not its default one\n"
        "  next:    hold a StreamOfItsOwn from before the model is wrapped on");
  const bool clean = std::ranges::none_of(
      parameters_, [](const at::Tensor& it) { return it.grad().defined(); });
  if (!clean)
    throw InvalidArgument(
        "a pass is captured that would add to gradients, and so would all of "
        "its replays\n  next:    call zero_grad() before each pass");
  const auto graph = make_device_graph(device);
  capture_pass(graph);
  for (const at::Tensor& parameter : parameters_)
    gradients_.push_back(parameter.grad());
  graph_ = graph;
}

void CapturedPass::capture_pass(const std::shared_ptr<DeviceGraph>& graph) {
  graph->begin_capture();
  try {
    outputs_ = pass_(inputs_);
    group_->attach(graph);
  } catch (...) {
    const auto error = std::current_exception();
    try {
      graph->end_capture();
    } catch (const std::exception&) {
      // The first error says why.
    }
    std::rethrow_exception(error);
  }
  graph->end_capture();
}

}  // namespace lockstep
