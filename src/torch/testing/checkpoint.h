// A part of the graph that keeps no activations of its forward pass, and runs
// it again in a backward pass of its own inside the backward pass.
//
// Threads: like autograd functions.
#pragma once

#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cstdint>
#include <functional>

namespace lockstep {

using Body = std::function<at::Tensor(const at::Tensor&)>;

class Checkpoint : public torch::autograd::Function<Checkpoint> {
 public:
  // `body` must live until the backward pass is over.
  static at::Tensor forward(torch::autograd::AutogradContext* context,
                            const at::Tensor& input, const Body* body) {
    context->save_for_backward({input});
    context->saved_data["body"] = reinterpret_cast<std::int64_t>(body);
    return (*body)(input);
  }

  static std::vector<at::Tensor> backward(
      torch::autograd::AutogradContext* context,
      const std::vector<at::Tensor>& gradients) {
    const auto* body =
        reinterpret_cast<const Body*>(context->saved_data["body"].toInt());
    const at::Tensor input =
        context->get_saved_variables()[0].detach().requires_grad_();
    const c10::AutoGradMode gradients_on(true);
    torch::autograd::backward({(*body)(input)}, {gradients[0]});
    return {input.grad(), at::Tensor()};
  }
};

inline at::Tensor checkpoint(const Body& body, const at::Tensor& input) {
  return Checkpoint::apply(input, &body);
}

}  // namespace lockstep
