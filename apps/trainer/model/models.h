// The image classifiers that `lockstep train` knows, by name.
//
//   convnet  two 3 x 3 convolutions (32 and 64 channels), each with ReLU and
//            2 x 2 max-pooling, then 128 hidden units with dropout: 421,642
//            parameters on 28 x 28 images
//   cnn      the network of PyTorch's MNIST tutorial: two 5 x 5 convolutions
//            (10 and 20 channels), dropout, 50 hidden units: 21,840 parameters
//   mlp      fully connected layers with ReLU and dropout between them
//   resnet18, resnet34, resnet50
//            torchvision's residual networks, whose weights they load: 11.7,
//            21.8 and 25.6 million parameters on ImageNet. Unless the options
//            name a stem, images below 64 pixels on their shorter side get that
//            for CIFAR: see apps/trainer/model/resnet.h. They have batch
//            normalisation and no dropout.
//
// All return logits: the loss (cross entropy) applies softmax.
//
// Initial weights equal those that PyTorch gives the same layers after
// torch.manual_seed(seed). Weights, and on the CPU dropout, come from the
// model's own generators, never from LibTorch's global ones, so that a run is
// repeatable even if other code in the process draws random numbers. On a GPU
// dropout draws from LibTorch's generator of that GPU: other numbers than the
// CPU's, the same after the same seed_dropout() if no other code draws
// meanwhile.
//
// Threads: a model belongs to one thread at a time.
// Errors:  InvalidArgument for an unknown name (with the known ones) and for
//          options that do not suit the model.
#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "apps/options/training_options.h"
#include "apps/trainer/model/saved_model.h"

namespace lockstep {

struct ModelOptions {
  std::int64_t channels = 1;
  std::int64_t height = 28;
  std::int64_t width = 28;
  std::int64_t classes = 10;
  // mlp only: the sizes of its hidden layers.
  std::vector<std::int64_t> hidden = usual_hidden_sizes();
  // Of residual networks: kAuto chooses by the size of the images.
  Stem stem = Stem::kAuto;
  // The share of activations that each dropout layer drops in training, at
  // least 0 and below 1; the model's default when empty.
  std::optional<double> dropout{};
  // For the initial weights.
  std::uint64_t seed = 0;
  // For dropout on the CPU; differs from rank to rank, as their samples do.
  std::uint64_t dropout_seed = 0;
};

// One of kModels.
std::shared_ptr<Classifier> make_model(std::string_view name,
                                       const ModelOptions& options = {});

// Seeds the model's dropout, if any: on a GPU all random numbers that LibTorch
// draws there from now on, except a capture's.
void seed_dropout(const torch::nn::Module& model, std::uint64_t seed);

// Stores the weights of the model's convolutions in channels-last order, which
// the fastest kernels need for images too. Values and tensors stay the same.
void store_channels_last(const Classifier& model);

// The number of trained scalars.
std::int64_t parameter_count(const torch::nn::Module& module);

}  // namespace lockstep
