// The network of mnist_plain.cc and mnist.cc.
#pragma once

#include <torch/torch.h>

#include <cstddef>
#include <cstdint>

constexpr std::size_t kSamples = 2048;  // the first of the data set
constexpr std::size_t kBatch = 64;      // of all ranks together
constexpr int kEpochs = 2;

// No dropout: each rank would draw for its own part of the batch, and the
// numbers would depend on the number of ranks.
struct Net : torch::nn::Module {
  at::Tensor forward(at::Tensor images) {
    images = torch::max_pool2d(torch::relu(conv(images)), 2);
    return output(images.flatten(1));
  }
  torch::nn::Conv2d conv = register_module("conv", torch::nn::Conv2d(1, 8, 5));
  torch::nn::Linear output =
      register_module("output", torch::nn::Linear(8 * 12 * 12, 10));
};
