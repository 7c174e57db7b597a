#include "apps/trainer/model/resnet.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "apps/trainer/model/initial_weights.h"
#include "lockstep/base/error.h"
#include "lockstep/torch/sync_batch_norm.h"

namespace lockstep {
namespace {

using torch::nn::Conv2d;
using torch::nn::Conv2dOptions;

enum class BlockKind { kBasic, kBottleneck };

struct Architecture {
  BlockKind blocks;
  std::array<int, 4> depths;  // blocks in each stage
};

Architecture architecture_of(std::string_view name) {
  switch (known_model(name).value) {
    case ModelName::kResnet18:
      return {BlockKind::kBasic, {2, 2, 2, 2}};
    case ModelName::kResnet34:
      return {BlockKind::kBasic, {3, 4, 6, 3}};
    case ModelName::kResnet50:
      return {BlockKind::kBottleneck, {3, 4, 6, 3}};
    case ModelName::kConvnet:
    case ModelName::kCnn:
    case ModelName::kMlp:
      break;
  }
  throw InvalidArgument("the model " + std::string(name) +
                        " is no residual network");
}

constexpr std::int64_t kStemChannels = 64;
constexpr std::int64_t kLeastSideForLargeStem = 64;
constexpr std::int64_t kLargeKernel = 7;
constexpr std::int64_t kSmallKernel = 3;
// Halving it three times, rounding up, leaves 2.
constexpr std::int64_t kLeastSide = 9;

// The names in a block are numbered from 1, those in a downsample from 0.
class NormalizedConvolution {
 public:
  explicit NormalizedConvolution(const Conv2dOptions& options)
      : convolution_(Conv2dOptions(options).bias(false)),
        norm_(torch::nn::BatchNormOptions(options.out_channels())) {}

  at::Tensor operator()(const at::Tensor& x) { return norm_(convolution_(x)); }

  const Conv2d& convolution() const { return convolution_; }
  const BatchNorm& norm() const { return norm_; }
  std::int64_t outputs() const { return convolution_->weight.size(0); }

 private:
  Conv2d convolution_;
  BatchNorm norm_;
};

struct BlockShape {
  BlockKind kind;
  std::int64_t inputs;
  std::int64_t width;  // of the stage: 64, 128, 256, 512
  std::int64_t stride;
};

std::vector<Conv2dOptions> convolutions_of(const BlockShape& shape) {
  const auto [kind, inputs, width, stride] = shape;
  switch (kind) {
    case BlockKind::kBasic:
      return {Conv2dOptions(inputs, width, 3).stride(stride).padding(1),
              Conv2dOptions(width, width, 3).padding(1)};
    case BlockKind::kBottleneck:
      return {Conv2dOptions(inputs, width, 1),
              Conv2dOptions(width, width, 3).stride(stride).padding(1),
              Conv2dOptions(width, 4 * width, 1)};
  }
  return {};
}

// Brings a block's input to the shape of its output.
class Downsample : public torch::nn::Module {
 public:
  Downsample(std::int64_t inputs, std::int64_t outputs, std::int64_t stride)
      : project_(Conv2dOptions(inputs, outputs, 1).stride(stride)) {
    register_module("0", project_.convolution());
    register_module("1", project_.norm());
  }

  at::Tensor forward(const at::Tensor& x) { return project_(x); }
  const at::Tensor& weight() const { return project_.convolution()->weight; }

 private:
  NormalizedConvolution project_;
};

class Block : public torch::nn::Module {
 public:
  explicit Block(const BlockShape& shape) {
    for (const Conv2dOptions& options : convolutions_of(shape)) {
      const auto& layer = layers_.emplace_back(options);
      const std::string number = std::to_string(layers_.size());
      register_module("conv" + number, layer.convolution());
      register_module("bn" + number, layer.norm());
    }
    if (shape.stride != 1 || shape.inputs != outputs())
      downsample_ = register_module(
          "downsample",
          std::make_shared<Downsample>(shape.inputs, outputs(), shape.stride));
  }

  // In place where autograd does not need the overwritten values.
  at::Tensor forward(const at::Tensor& input) {
    at::Tensor x = input;
    for (std::size_t i = 0; i + 1 < layers_.size(); ++i)
      x = layers_[i](x).relu_();
    x = layers_.back()(x);
    return x.add_(downsample_ ? downsample_->forward(input) : input).relu_();
  }

  std::int64_t outputs() const { return layers_.back().outputs(); }

  // In torchvision's order of creation, and in its order of the later
  // initialization.
  std::vector<at::Tensor> weights_as_made() const {
    std::vector<at::Tensor> weights;
    if (downsample_) weights.push_back(downsample_->weight());
    for (const auto& layer : layers_)
      weights.push_back(layer.convolution()->weight);
    return weights;
  }
  std::vector<at::Tensor> weights_as_named() const {
    auto weights = weights_as_made();
    if (downsample_)
      std::rotate(weights.begin(), weights.begin() + 1, weights.end());
    return weights;
  }

 private:
  std::vector<NormalizedConvolution> layers_;
  std::shared_ptr<Downsample> downsample_;
};

// `layer1` to `layer4`.
class Stage : public torch::nn::Module {
 public:
  // `shape` is that of the first block.
  Stage(BlockShape shape, int depth) {
    for (int i = 0; i < depth; ++i) {
      blocks_.push_back(
          register_module(std::to_string(i), std::make_shared<Block>(shape)));
      shape.inputs = blocks_.back()->outputs();
      shape.stride = 1;
    }
  }

  at::Tensor forward(at::Tensor x) {
    for (const auto& block : blocks_) x = block->forward(x);
    return x;
  }

  const std::vector<std::shared_ptr<Block>>& blocks() const { return blocks_; }

 private:
  std::vector<std::shared_ptr<Block>> blocks_;
};

class ResNet : public Classifier {
 public:
  ResNet(const Architecture& architecture, const ModelOptions& options)
      : large_(chosen_stem(options.stem, options.height, options.width) ==
               Stem::kImageNet),
        stem_(large_
                  ? Conv2dOptions(options.channels, kStemChannels, kLargeKernel)
                        .stride(2)
                        .padding(3)
                  : Conv2dOptions(options.channels, kStemChannels, kSmallKernel)
                        .padding(1)) {
    register_module("conv1", stem_.convolution());
    register_module("bn1", stem_.norm());
    std::int64_t channels = kStemChannels;
    for (std::size_t i = 0; i < architecture.depths.size(); ++i) {
      const BlockShape shape{.kind = architecture.blocks,
                             .inputs = channels,
                             .width = kStemChannels << i,
                             .stride = i == 0 ? 1 : 2};
      stages_.push_back(register_module(
          "layer" + std::to_string(i + 1),
          std::make_shared<Stage>(shape, architecture.depths[i])));
      channels = stages_.back()->blocks().back()->outputs();
    }
    fc_ = register_module("fc", torch::nn::Linear(channels, options.classes));
  }

  at::Tensor forward(const at::Tensor& images) override {
    at::Tensor x = stem_(images).relu_();
    if (large_) x = at::max_pool2d(x, 3, 2, 1);
    for (const auto& stage : stages_) x = stage->forward(x);
    return fc_(at::adaptive_avg_pool2d(x, {1, 1}).flatten(1));
  }

  // Torchvision's layers draw their default weights when created, and all
  // convolutions draw again at the end: the same draws give the same weights
  // from the same seed. BatchNorm's weights are 1 and 0 from the start.
  void initialize(std::uint64_t seed) {
    const at::NoGradGuard no_grad;
    const auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
    std::vector<at::Tensor> made{stem_.convolution()->weight}, named = made;
    for (const auto& stage : stages_)
      for (const auto& block : stage->blocks()) {
        for (const auto& weight : block->weights_as_made())
          made.push_back(weight);
        for (const auto& weight : block->weights_as_named())
          named.push_back(weight);
      }
    for (const auto& weight : made) reset_parameters(weight, {}, generator);
    reset_parameters(fc_->weight, fc_->bias, generator);
    for (const auto& weight : named) kaiming_normal_fan_out(weight, generator);
  }

 private:
  bool large_;  // whether the stem is ImageNet's
  NormalizedConvolution stem_;
  std::vector<std::shared_ptr<Stage>> stages_;
  torch::nn::Linear fc_{nullptr};
};

void validate_resnet(std::string_view name, const ModelOptions& options) {
  const std::string model = "the model " + std::string(name);
  if (std::min(options.height, options.width) < kLeastSide)
    throw InvalidArgument(
        model + " needs images of at least 9 x 9 pixels, not " +
        std::to_string(options.width) + " x " + std::to_string(options.height));
  if (options.dropout.value_or(0) != 0)
    throw InvalidArgument(model + " has no dropout, but " +
                          std::to_string(*options.dropout) + " was requested");
}

}  // namespace

Stem chosen_stem(Stem asked, std::int64_t height, std::int64_t width) {
  if (asked != Stem::kAuto) return asked;
  return std::min(height, width) >= kLeastSideForLargeStem ? Stem::kImageNet
                                                           : Stem::kCifar;
}

Stem stem_of_weight(const at::Tensor& weight) {
  if (weight.dim() != 4) return Stem::kAuto;
  if (weight.size(2) == kLargeKernel) return Stem::kImageNet;
  return weight.size(2) == kSmallKernel ? Stem::kCifar : Stem::kAuto;
}

std::shared_ptr<Classifier> make_resnet(std::string_view name,
                                        const ModelOptions& options) {
  const Architecture architecture = architecture_of(name);
  validate_resnet(name, options);
  auto model = std::make_shared<ResNet>(architecture, options);
  model->initialize(options.seed);
  return model;
}

}  // namespace lockstep
