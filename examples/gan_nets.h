// The networks of gan_plain.cc and gan.cc.
#pragma once

#include <torch/torch.h>

#include <cstddef>
#include <cstdint>

constexpr std::size_t kSamples = 1024;  // the first of the data set
constexpr std::size_t kBatch = 64;      // of all ranks together
constexpr int kEpochs = 2;
constexpr std::int64_t kNoise = 16;

// Noise [N, kNoise] to images [N, 1, 28, 28] of -1 … 1.
inline torch::nn::Sequential make_generator() {
  namespace nn = torch::nn;
  const auto doubling = [](int in, int out) {
    return nn::ConvTranspose2d(
        nn::ConvTranspose2dOptions(in, out, 4).stride(2).padding(1));
  };
  return nn::Sequential(nn::Linear(kNoise, 16 * 7 * 7),
                        nn::Unflatten(nn::UnflattenOptions(1, {16, 7, 7})),
                        nn::BatchNorm2d(16), nn::ReLU(), doubling(16, 8),
                        nn::BatchNorm2d(8), nn::ReLU(), doubling(8, 1),
                        nn::Tanh());
}

// Images to [N, 1]: above 0 for images that it considers real.
inline torch::nn::Sequential make_discriminator() {
  namespace nn = torch::nn;
  const auto halving = [](int in, int out) {
    return nn::Conv2d(nn::Conv2dOptions(in, out, 4).stride(2).padding(1));
  };
  return nn::Sequential(halving(1, 8), nn::LeakyReLU(), halving(8, 16),
                        nn::LeakyReLU(), nn::Flatten(),
                        nn::Linear(16 * 7 * 7, 1));
}

// How far `scores` are from calling all images real (1), or generated (0).
inline at::Tensor loss_against(const at::Tensor& scores, double truth) {
  return torch::binary_cross_entropy_with_logits(
      scores, torch::full_like(scores, truth));
}

inline void freeze(torch::nn::Module& module) {
  for (const at::Tensor& parameter : module.parameters())
    parameter.set_requires_grad(false);
}

inline void thaw(torch::nn::Module& module) {
  for (const at::Tensor& parameter : module.parameters())
    parameter.set_requires_grad(true);
}
