#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

#include <memory>
#include <unordered_set>
#include <utility>
#include <vector>

#include "lockstep/torch/optimizers.h"
#include "lockstep/torch/tensor_collectives.h"
#include "src/torch/gradient/gradient_factor.h"
#include "src/torch/optim/device_update.h"
#include "src/torch/optim/gradient_norm.h"
#include "src/torch/optim/update_state.h"
#include "src/torch/tensor/module_tensors.h"

namespace lockstep {
namespace {

using Groups = std::vector<torch::optim::OptimizerParamGroup>;

// Checks before LibTorch's class refuses the same with its own message.
template <class Options>
const Options& checked(const Options& options) {
  update_rule(options);
  return options;
}

void check(const Groups& groups) {
  has_repeated_parameters(groups);  // logs a line
  for (const auto& group : groups) update_rule(group.options());
  for (const auto& parameter : parameters_of(groups))
    size_of_updatable(parameter);
}

std::vector<UpdateRule> rules_of(const Groups& groups) {
  std::vector<UpdateRule> rules;
  for (const auto& group : groups)
    rules.push_back(update_rule(group.options()));
  return rules;
}

// The state for one more step: the existing one, or zeros.
UpdateState next_state(const OptimizedParameter& parameter,
                       const UpdateRule& rule,
                       const torch::optim::OptimizerParamState* present) {
  UpdateState state = read_state(present);
  ++state.step;
  const at::Tensor& tensor = parameter.tensor;
  for (std::size_t i = 0; i < state_count(rule); ++i) {
    at::Tensor& numbers = state.numbers[i];
    if (numbers.defined())
      numbers = state_for(parameter, numbers);
    else
      numbers = at::zeros_like(
          tensor, tensor.options().dtype(state_scalar_type(tensor)));
  }
  return state;
}

// In float32 where a 16-bit parameter has a float32 gradient: the kernels
// compute both in float32.
at::Tensor updatable_gradient(const OptimizedParameter& parameter) {
  const at::Tensor& gradient = parameter.tensor.grad();
  const bool is_wide = gradient.defined() &&
                       gradient.scalar_type() == at::kFloat &&
                       parameter.tensor.element_size() == 2;
  return is_wide ? gradient_of(parameter, at::kFloat) : gradient_of(parameter);
}

void update_whole(const at::Tensor& parameter, const at::Tensor& gradient,
                  const UpdateState& state, const Update& update) {
  if (gradient.scalar_type() != parameter.scalar_type()) {
    const at::Tensor wide = parameter.to(gradient.scalar_type());
    update_whole(wide, gradient, state, update);
    parameter.copy_(wide);
    return;
  }
  UpdatePiece piece{.parameter = bytes_at(parameter, 0),
                    .gradient = bytes_at(gradient, 0),
                    .elements = static_cast<std::size_t>(parameter.numel()),
                    .type = data_type_of(parameter.scalar_type())};
  for (std::size_t i = 0; i < state_count(update.rule); ++i)
    piece.state[i] = bytes_at(state.numbers[i], 0);
  apply_update(update, piece);
  // The kernels write without autograd's knowledge.
  parameter.unsafeGetTensorImpl()->bump_version();
}

// While it lives, an optimizer lists each parameter once; further places of a
// repeated parameter hold other tensors.
class FirstPlacesOnly {
 public:
  explicit FirstPlacesOnly(torch::optim::Optimizer& optimizer)
      : optimizer_(optimizer) {
    std::unordered_set<const c10::TensorImpl*> seen;
    for (auto& group : optimizer.param_groups())
      for (at::Tensor& place : group.params())
        if (!seen.insert(place.unsafeGetTensorImpl()).second)
          taken_.emplace_back(&place, std::exchange(place, at::empty({0})));
  }
  ~FirstPlacesOnly() {
    for (auto& [place, parameter] : taken_) {
      optimizer_.state().erase(place->unsafeGetTensorImpl());
      *place = std::move(parameter);
    }
  }
  FirstPlacesOnly(const FirstPlacesOnly&) = delete;
  FirstPlacesOnly& operator=(const FirstPlacesOnly&) = delete;

 private:
  torch::optim::Optimizer& optimizer_;
  std::vector<std::pair<at::Tensor*, at::Tensor>> taken_;
};

}  // namespace

template <class Optimizer, class Options>
Fused<Optimizer, Options>::Fused(std::vector<at::Tensor> parameters,
                                 const Options& options)
    : Optimizer(std::move(parameters), checked(options)),
      factor_(std::make_unique<GradientFactor>()) {
  check(this->param_groups());
}

template <class Optimizer, class Options>
Fused<Optimizer, Options>::Fused(const Groups& groups, const Options& defaults)
    : Optimizer(groups, checked(defaults)),
      factor_(std::make_unique<GradientFactor>()) {
  check(this->param_groups());
}

template <class Optimizer, class Options>
Fused<Optimizer, Options>::~Fused() = default;

template <class Optimizer, class Options>
Fused<Optimizer, Options>::Fused(Fused&&) noexcept = default;

template <class Optimizer, class Options>
at::Tensor Fused<Optimizer, Options>::step(LossClosure closure) {
  at::Tensor loss;
  if (closure) {
    const c10::AutoGradMode with_grad(true);
    loss = closure();
  }
  const c10::AutoGradMode no_grad(false);
  const auto parameters = parameters_of(this->param_groups());
  std::vector<at::Tensor> gradients;
  for (const auto& parameter : parameters) {
    size_of_updatable(parameter);
    gradients.push_back(updatable_gradient(parameter));
  }
  const auto rules = rules_of(this->param_groups());
  const double scale = factor_->take(tensors_of(parameters));
  std::vector<DeviceUpdate> on_devices;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (!gradients[i].defined()) continue;
    const UpdateRule& rule = rules[parameters[i].group];
    const at::Tensor& tensor = parameters[i].tensor;
    const auto kept = this->state_.find(tensor.unsafeGetTensorImpl());
    const UpdateState state =
        next_state(parameters[i], rule,
                   kept == this->state_.end() ? nullptr : kept->second.get());
    if (tensor.is_cpu())
      update_whole(tensor, gradients[i], state, {rule, state.step, scale});
    else
      on_devices.push_back({parameters[i].group, tensor, gradients[i], state});
    if (state.numbers[0].defined())
      write_state(state, rule, this->state_[tensor.unsafeGetTensorImpl()]);
  }
  update_on_devices(rules, on_devices, scale);
  return loss;
}

template <class Optimizer, class Options>
void Fused<Optimizer, Options>::load(torch::serialize::InputArchive& archive) {
  const FirstPlacesOnly first_places(*this);
  Optimizer::load(archive);
}

template <class Optimizer, class Options>
void Fused<Optimizer, Options>::zero_grad(bool set_to_none) {
  Optimizer::zero_grad(set_to_none);
  forget_scaling();
}

template <class Optimizer, class Options>
void Fused<Optimizer, Options>::scale_gradients(double factor) {
  factor_->scale(factor, tensors_of(parameters_of(this->param_groups())));
}

template <class Optimizer, class Options>
double Fused<Optimizer, Options>::take_scaling() {
  return factor_->take(tensors_of(parameters_of(this->param_groups())));
}

template <class Optimizer, class Options>
void Fused<Optimizer, Options>::forget_scaling() {
  factor_->forget();
}

template <class Optimizer, class Options>
double Fused<Optimizer, Options>::clip_grad_norm(double max_norm,
                                                 double norm_type) {
  const auto tensors = tensors_of(parameters_of(this->param_groups()));
  const double norm =
      factor_->scaled_by(tensors) * grad_norm(tensors, norm_type);
  factor_->clip(clip_coefficient(norm, max_norm), tensors);
  return norm;
}

template class Fused<torch::optim::SGD, torch::optim::SGDOptions>;
template class Fused<torch::optim::Adam, torch::optim::AdamOptions>;
template class Fused<torch::optim::AdamW, torch::optim::AdamWOptions>;

}  // namespace lockstep
