#include "lockstep/torch/autograd_join.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <utility>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

using torch::autograd::PostAccumulateGradHook;
using Arrived = std::function<void(std::size_t)>;

class GradientHook : public PostAccumulateGradHook {
 public:
  GradientHook(std::weak_ptr<const Arrived> arrived, std::size_t parameter,
               std::unique_ptr<PostAccumulateGradHook> earlier)
      : arrived_(std::move(arrived)),
        parameter_(parameter),
        earlier_(std::move(earlier)) {}

  void operator()(const at::Tensor& tensor) override {
    if (earlier_) (*earlier_)(tensor);
    if (const auto arrived = arrived_.lock()) (*arrived)(parameter_);
  }

  bool armed() const { return !arrived_.expired(); }
  std::unique_ptr<PostAccumulateGradHook> take_earlier() {
    return std::move(earlier_);
  }

 private:
  std::weak_ptr<const Arrived> arrived_;
  std::size_t parameter_;
  std::unique_ptr<PostAccumulateGradHook> earlier_;
};

std::unique_ptr<PostAccumulateGradHook>& slot_of(const at::Tensor& tensor) {
  return torch::autograd::impl::post_acc_grad_hooks(tensor);
}

// Calls `abandon` unless `finish` was reached. The engine owns it, through the
// callback, for as long as it works on the pass.
class PassEnd {
 public:
  PassEnd(std::function<void()> finish, std::function<void()> abandon)
      : finish_(std::move(finish)), abandon_(std::move(abandon)) {}
  ~PassEnd() {
    if (abandon_) abandon_();
  }
  PassEnd(const PassEnd&) = delete;
  PassEnd& operator=(const PassEnd&) = delete;

  void finish() {
    abandon_ = nullptr;
    finish_();
  }

 private:
  std::function<void()> finish_;
  std::function<void()> abandon_;
};

// What is left to do at the end of a pass; empty once somebody does it.
using Baton = std::shared_ptr<PassEnd>;

void call_at_end_of_this_pass(Baton end);

// Put on the nodes after the one in which a pass ran: the first of them that
// the outer pass reaches takes the baton.
class OuterPassHook : public torch::autograd::FunctionPreHook {
 public:
  explicit OuterPassHook(std::shared_ptr<Baton> baton)
      : baton_(std::move(baton)) {}

  std::vector<at::Tensor> operator()(
      const std::vector<at::Tensor>& gradients) override {
    if (*baton_) call_at_end_of_this_pass(std::exchange(*baton_, nullptr));
    return gradients;
  }

 private:
  std::shared_ptr<Baton> baton_;
};

// Hands the end of a pass inside `node` on to the pass around it. False where
// that pass goes nowhere from `node`.
bool hand_outwards(const Baton& end, const torch::autograd::Node& node) {
  const auto baton = std::make_shared<Baton>(end);
  bool handed = false;
  for (const torch::autograd::Edge& edge : node.next_edges()) {
    if (!edge.is_valid()) continue;
    edge.function->add_pre_hook(std::make_unique<OuterPassHook>(baton));
    handed = true;
  }
  return handed;
}

void call_at_end_of_this_pass(Baton end) {
  torch::autograd::Engine::get_default_engine().queue_callback(
      [end = std::move(end)] {
        // The nodes of this pass have all returned: a node that is still being
        // evaluated is one of a pass around it.
        const auto node = torch::autograd::get_current_node();
        if (!node || !hand_outwards(end, *node)) end->finish();
      });
}

}  // namespace

GradientHooks::GradientHooks(std::vector<at::Tensor> parameters,
                             std::span<const std::string> names,
                             std::function<void(std::size_t)> arrived)
    : parameters_(std::move(parameters)),
      arrived_(std::make_shared<const Arrived>(std::move(arrived))) {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const auto* present =
        dynamic_cast<const GradientHook*>(slot_of(parameters_[i]).get());
    if (present != nullptr && present->armed())
      throw InvalidArgument(
          "parameter " + names[i] +
          " is reduced by another DistributedDataParallel or Reducer already\n"
          "  next:    wrap a module once, or destroy the other wrapper first");
  }
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    torch::autograd::impl::set_post_acc_grad_hooks(
        parameters_[i], std::make_unique<GradientHook>(
                            arrived_, i, std::move(slot_of(parameters_[i]))));
}

GradientHooks::~GradientHooks() {
  arrived_.reset();
  for (const at::Tensor& parameter : parameters_) {
    auto& slot = slot_of(parameter);
    auto* hook = dynamic_cast<GradientHook*>(slot.get());
    if (hook != nullptr && !hook->armed()) slot = hook->take_earlier();
  }
}

void at_end_of_backward(std::function<void()> finish,
                        std::function<void()> abandon) {
  call_at_end_of_this_pass(
      std::make_shared<PassEnd>(std::move(finish), std::move(abandon)));
}

}  // namespace lockstep
