// A classifier of striped_images() for tests, with a convolution and dropout.
// Its weights come from a formula, so that each rank can make its own.
#pragma once

#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>

#include "src/torch/testing/small_nets.h"

namespace lockstep {

struct StripeNet : torch::nn::Module {
  explicit StripeNet(int channels = 1) {
    convolution = register_module(
        "convolution",
        torch::nn::Conv2d(torch::nn::Conv2dOptions(channels, 4, 5).stride(3)));
    dropout = register_module("dropout", torch::nn::Dropout(0.5));
    linear = register_module("linear", torch::nn::Linear(4 * 8 * 8, 10));
    fill(*this, 0);
  }
  // Images (samples x channels x 28 x 28) to logits (samples x 10).
  at::Tensor forward(const at::Tensor& images) {
    return linear(dropout(torch::relu(convolution(images)).flatten(1)));
  }
  torch::nn::Conv2d convolution{nullptr};
  torch::nn::Dropout dropout{nullptr};
  torch::nn::Linear linear{nullptr};
};

}  // namespace lockstep
