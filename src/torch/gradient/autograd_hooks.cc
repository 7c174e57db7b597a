#include "src/torch/gradient/autograd_hooks.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <exception>
#include <map>
#include <mutex>
#include <utility>

#include "lockstep/base/error.h"

namespace lockstep {

using torch::autograd::PostAccumulateGradHook;

namespace {

std::unique_ptr<PostAccumulateGradHook>& slot_of(const at::Tensor& tensor) {
  return torch::autograd::impl::post_acc_grad_hooks(tensor);
}

}  // namespace

class HookTarget : public std::enable_shared_from_this<HookTarget> {
 public:
  HookTarget(std::vector<at::Tensor> parameters,
             std::function<void(std::size_t)> arrived)
      : parameters_(std::move(parameters)), arrived_(std::move(arrived)) {}

  const std::vector<at::Tensor>& parameters() const { return parameters_; }
  void arrived(std::size_t parameter) const { arrived_(parameter); }
  // Puts a hook into the slot of this parameter, behind the one that is there.
  void chain(std::size_t parameter);

 private:
  // Held, so that no slot ends before its hook.
  const std::vector<at::Tensor> parameters_;
  const std::function<void(std::size_t)> arrived_;
};

namespace {

class GradientHook : public PostAccumulateGradHook {
 public:
  GradientHook(std::weak_ptr<HookTarget> target, std::size_t parameter,
               std::unique_ptr<PostAccumulateGradHook> earlier)
      : target_(std::move(target)),
        parameter_(parameter),
        earlier_(std::make_shared<Earlier>(std::move(earlier))) {}
  // Called by GradientHooks, when the target is gone, or by code that replaces
  // the hook. A unique_ptr takes its new value before it deletes the old one,
  // so the slot holds the other hook already.
  ~GradientHook() override {
    if (const auto target = target_.lock()) target->chain(parameter_);
  }
  GradientHook(const GradientHook&) = delete;
  GradientHook& operator=(const GradientHook&) = delete;

  // An earlier hook may remove itself from the slot, and with it this object.
  void operator()(const at::Tensor& tensor) override {
    const std::weak_ptr<HookTarget> target = target_;
    const std::size_t parameter = parameter_;
    if (const auto earlier = earlier_; *earlier) (**earlier)(tensor);
    if (const auto alive = target.lock()) alive->arrived(parameter);
  }

  bool armed() const { return !target_.expired(); }
  std::unique_ptr<PostAccumulateGradHook> take_earlier() {
    return std::move(*earlier_);
  }

 private:
  using Earlier = std::unique_ptr<PostAccumulateGradHook>;
  std::weak_ptr<HookTarget> target_;
  std::size_t parameter_;
  std::shared_ptr<Earlier> earlier_;  // shared with a call that is under way
};

}  // namespace

void HookTarget::chain(std::size_t parameter) {
  auto& slot = slot_of(parameters_[parameter]);
  auto earlier = std::move(slot);
  torch::autograd::impl::set_post_acc_grad_hooks(
      parameters_[parameter],
      std::make_unique<GradientHook>(weak_from_this(), parameter,
                                     std::move(earlier)));
}

namespace {

// Calls `abandon` unless the pass reached its end.
class PassEnd {
 public:
  explicit PassEnd(EndOfBackward end) : end_(std::move(end)) {}
  ~PassEnd() {
    if (!reached_) end_.abandon();
  }
  PassEnd(const PassEnd&) = delete;
  PassEnd& operator=(const PassEnd&) = delete;

  std::uint64_t number() const { return end_.number; }
  const std::exception_ptr& error() const { return error_; }

  void start_rest() {
    reached_ = true;
    keep_error_of(end_.start_rest);
  }
  void finish() {
    if (!error_) keep_error_of(end_.finish);
  }

 private:
  void keep_error_of(const std::function<void()>& step) noexcept {
    try {
      step();
    } catch (...) {
      error_ = std::current_exception();
    }
  }

  EndOfBackward end_;
  bool reached_ = false;
  std::exception_ptr error_;
};

using PassEnds = std::vector<std::unique_ptr<PassEnd>>;

void finish_all(PassEnds ends) {
  std::ranges::sort(ends, {}, [](const auto& end) { return end->number(); });
  for (const auto& end : ends) end->start_rest();
  for (const auto& end : ends) end->finish();
  for (const auto& end : ends)
    if (end->error()) std::rethrow_exception(end->error());
}

// The work for the end of a pass, of all callers. The engine owns it, through a
// callback, while it runs the pass.
class EndsOfPass {
 public:
  void add(std::unique_ptr<PassEnd> end) {
    const std::lock_guard lock(mutex_);
    ends_.push_back(std::move(end));
  }
  PassEnds take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(ends_, {});
  }

 private:
  std::mutex mutex_;
  PassEnds ends_;
};

// The EndsOfPass of the running passes, by the engine's number for a pass.
// Backward passes belong to the process, hence the one global here.
class PassesUnderWay {
 public:
  // Creates the entry if it is missing, and then calls `created` with it.
  template <class Created>
  void add(int pass, std::unique_ptr<PassEnd> end, const Created& created) {
    const std::lock_guard lock(mutex_);
    auto ends = passes_[pass].lock();
    if (!ends) {
      std::erase_if(passes_, [&](const auto& entry) {
        return entry.first != pass && entry.second.expired();
      });
      ends = std::make_shared<EndsOfPass>();
      created(ends);
      passes_[pass] = ends;
    }
    ends->add(std::move(end));
  }

 private:
  std::mutex mutex_;
  std::map<int, std::weak_ptr<EndsOfPass>> passes_;
};

PassesUnderWay& passes_under_way() {
  static PassesUnderWay& passes =
      *new PassesUnderWay;  // outlives static objects
  return passes;
}

void call_at_end_of_this_pass(std::unique_ptr<PassEnd> end);

// Installed on the nodes after the one in which a pass ran: the first of them
// that the outer pass reaches takes over the inner pass's work.
class OuterPassHook : public torch::autograd::FunctionPreHook {
 public:
  explicit OuterPassHook(std::shared_ptr<EndsOfPass> ends)
      : ends_(std::move(ends)) {}

  std::vector<at::Tensor> operator()(
      const std::vector<at::Tensor>& gradients) override {
    for (auto& end : ends_->take()) call_at_end_of_this_pass(std::move(end));
    return gradients;
  }

 private:
  std::shared_ptr<EndsOfPass> ends_;
};

// Passes the end of a pass inside `node` on to the pass around it. False if the
// outer pass has no node after `node`.
bool hand_outwards(const std::shared_ptr<EndsOfPass>& ends,
                   const torch::autograd::Node& node) {
  bool handed = false;
  for (const torch::autograd::Edge& edge : node.next_edges()) {
    if (!edge.is_valid()) continue;
    edge.function->add_pre_hook(std::make_unique<OuterPassHook>(ends));
    handed = true;
  }
  return handed;
}

void call_at_end_of_this_pass(std::unique_ptr<PassEnd> end) {
  const auto queue = [](const std::shared_ptr<EndsOfPass>& ends) {
    torch::autograd::Engine::get_default_engine().queue_callback([ends] {
      // All nodes of this pass have returned: a node that is still being
      // evaluated belongs to a pass around it.
      const auto node = torch::autograd::get_current_node();
      if (!node || !hand_outwards(ends, *node)) finish_all(ends->take());
    });
  };
  passes_under_way().add(torch::autograd::get_current_graph_task_id(),
                         std::move(end), queue);
}

}  // namespace

GradientHooks::GradientHooks(std::vector<at::Tensor> parameters,
                             std::span<const std::string> names,
                             std::function<void(std::size_t)> arrived)
    : target_(std::make_shared<HookTarget>(std::move(parameters),
                                           std::move(arrived))) {
  const auto& all = target_->parameters();
  for (std::size_t i = 0; i < all.size(); ++i) {
    const auto* present =
        dynamic_cast<const GradientHook*>(slot_of(all[i]).get());
    if (present != nullptr && present->armed())
      throw InvalidArgument(
          "parameter " + names[i] +
          " is reduced by another DistributedDataParallel or Reducer already"
          "\n  next:    wrap the module only once, or destroy the other "
          "wrapper first");
  }
  for (std::size_t i = 0; i < all.size(); ++i) target_->chain(i);
}

GradientHooks::~GradientHooks() {
  const std::vector<at::Tensor> parameters = target_->parameters();
  target_.reset();
  for (const at::Tensor& parameter : parameters) {
    auto& slot = slot_of(parameter);
    auto* hook = dynamic_cast<GradientHook*>(slot.get());
    if (hook != nullptr && !hook->armed()) slot = hook->take_earlier();
  }
}

void call_when_gradient_comes(const at::Tensor& output,
                              std::function<void()> come) {
  if (!output.defined() || !output.requires_grad() || output.is_leaf()) return;
  output.register_hook(
      [come = std::move(come)](const at::Tensor& /*gradient*/) { come(); });
}

bool is_pass_of_some_inputs() {
  const auto* const tasks = torch::autograd::get_current_graph_task_exec_info();
  return tasks != nullptr && !tasks->empty();
}

void at_end_of_backward(EndOfBackward end) {
  call_at_end_of_this_pass(std::make_unique<PassEnd>(std::move(end)));
}

}  // namespace lockstep
