#include "src/torch/optim/device_update.h"

#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/full.h>

#include <cstdint>
#include <map>
#include <tuple>
#include <variant>

namespace lockstep {
namespace {

// Tensors of one rule, step, device and type.
struct Lists {
  std::int64_t step = 0;
  std::vector<at::Tensor> parameters, gradients, first, second;
};

void run(const SgdRule& rule, Lists& lists) {
  at::_fused_sgd_(lists.parameters, lists.gradients, lists.first,
                  rule.weight_decay, rule.momentum, rule.learning_rate,
                  rule.dampening, rule.nesterov, /*maximize=*/false,
                  /*is_first_step=*/lists.step == 1);
}

void run(const AdamRule& rule, Lists& lists) {
  const std::vector<at::Tensor> steps(
      lists.parameters.size(),
      at::full({}, static_cast<double>(lists.step),
               lists.parameters.front().options().dtype(at::kFloat)));
  const auto update = [&](auto&& kernel) {
    kernel(lists.parameters, lists.gradients, lists.first, lists.second,
           at::TensorList(), steps, rule.learning_rate, rule.beta1, rule.beta2,
           rule.weight_decay, rule.eps, /*amsgrad=*/false, /*maximize=*/false);
  };
  if (rule.decay == AdamRule::Decay::kOfGradient)
    update([](auto&&... arguments) { at::_fused_adam_(arguments...); });
  else
    update([](auto&&... arguments) { at::_fused_adamw_(arguments...); });
}

}  // namespace

void update_on_devices(std::span<const UpdateRule> rules,
                       std::span<const DeviceUpdate> updates,
                       double gradient_scale) {
  using Key =
      std::tuple<std::size_t, std::int64_t, at::DeviceIndex, at::ScalarType>;
  std::map<Key, Lists> kinds;
  for (const DeviceUpdate& update : updates) {
    const at::Tensor& parameter = update.parameter;
    Lists& lists = kinds[{update.rule, update.state.step,
                          parameter.device().index(), parameter.scalar_type()}];
    lists.step = update.state.step;
    lists.parameters.push_back(parameter);
    lists.gradients.push_back(update.gradient);
    const auto& [first, second] = update.state.numbers;
    if (first.defined()) lists.first.push_back(first);
    if (second.defined()) lists.second.push_back(second);
  }
  for (auto& [key, lists] : kinds) {
    if (gradient_scale != 1)
      lists.gradients = at::_foreach_mul(lists.gradients, gradient_scale);
    std::visit([&, &of_kind = lists](const auto& rule) { run(rule, of_kind); },
               rules[std::get<0>(key)]);
    // LibTorch's fused kernels write without autograd's knowledge.
    for (const at::Tensor& parameter : lists.parameters)
      parameter.unsafeGetTensorImpl()->bump_version();
  }
}

}  // namespace lockstep
