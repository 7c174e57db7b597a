#include "apps/trainer/model/models.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <mutex>
#include <string>

#include "apps/trainer/model/initial_weights.h"
#include "apps/trainer/model/resnet.h"
#include "lockstep/base/error.h"

namespace lockstep {
namespace {

using torch::nn::Conv2d;
using torch::nn::Conv2dOptions;
using torch::nn::Linear;

// LibTorch's dropout, except that on the CPU it draws from its own generator.
class SeededDropout : public torch::nn::Module {
 public:
  SeededDropout(double probability, const at::Generator& generator)
      : probability_(probability), generator_(generator) {}

  // Drops individual activations.
  at::Tensor forward(const at::Tensor& input) {
    if (!is_training() || !drops()) return input;
    return input.is_cpu() ? drop(input, input.sizes())
                          : at::dropout(input, probability_, /*train=*/true);
  }

  // Drops whole channels of samples x channels x height x width.
  at::Tensor forward_channels(const at::Tensor& input) {
    if (!is_training() || !drops()) return input;
    return input.is_cpu()
               ? drop(input, {input.size(0), input.size(1), 1, 1})
               : at::feature_dropout(input, probability_, /*train=*/true);
  }

  void set_seed(std::uint64_t seed) { generator_.set_current_seed(seed); }
  bool drops() const { return probability_ > 0; }

 private:
  at::Tensor drop(const at::Tensor& input, at::IntArrayRef mask_shape) {
    const double keep = 1 - probability_;
    at::Tensor mask = at::empty(mask_shape, input.options());
    return input * mask.bernoulli_(keep, generator_).div_(keep);
  }

  double probability_;
  at::Generator generator_;
};

// Arguments of the constructors below besides sizes.
class Parts {
 public:
  Parts(const ModelOptions& options, double usual_dropout)
      : generator_(
            at::make_generator<at::CPUGeneratorImpl>(options.dropout_seed)),
        dropout_(options.dropout.value_or(usual_dropout)) {}

  std::shared_ptr<SeededDropout> dropout() const {
    return std::make_shared<SeededDropout>(dropout_, generator_);
  }

 private:
  at::Generator generator_;
  double dropout_;
};

class ConvNet : public Classifier {
 public:
  explicit ConvNet(const ModelOptions& options)
      : conv1_(Conv2dOptions(options.channels, 32, 3).padding(1)),
        conv2_(Conv2dOptions(32, 64, 3).padding(1)),
        fc1_(64 * (options.height / 4) * (options.width / 4), 128),
        fc2_(128, options.classes),
        dropout_(Parts(options, 0.25).dropout()) {
    register_module("conv1", conv1_);
    register_module("conv2", conv2_);
    register_module("fc1", fc1_);
    register_module("dropout", dropout_);
    register_module("fc2", fc2_);
  }

  at::Tensor forward(const at::Tensor& images) override {
    at::Tensor x = at::max_pool2d(conv1_(images).relu(), 2);
    x = at::max_pool2d(conv2_(x).relu(), 2);
    x = fc1_(x.flatten(1)).relu();
    return fc2_(dropout_->forward(x));
  }

 private:
  Conv2d conv1_, conv2_;
  Linear fc1_, fc2_;
  std::shared_ptr<SeededDropout> dropout_;
};

// The side of an image after a 5 x 5 convolution without padding and 2 x 2
// pooling, twice.
std::int64_t tutorial_side(std::int64_t side) {
  return ((side - 4) / 2 - 4) / 2;
}

// From the years in which the MNIST example of
// https://github.com/pytorch/examples had these sizes; LibTorch's C++ example
// still has them.
class TutorialCnn : public Classifier {
 public:
  explicit TutorialCnn(const ModelOptions& options)
      : conv1_(Conv2dOptions(options.channels, 10, 5)),
        conv2_(Conv2dOptions(10, 20, 5)),
        fc1_(20 * tutorial_side(options.height) * tutorial_side(options.width),
             50),
        fc2_(50, options.classes) {
    const Parts parts(options, 0.5);
    register_module("conv1", conv1_);
    register_module("conv2", conv2_);
    conv2_drop_ = register_module("conv2_drop", parts.dropout());
    register_module("fc1", fc1_);
    dropout_ = register_module("dropout", parts.dropout());
    register_module("fc2", fc2_);
  }

  at::Tensor forward(const at::Tensor& images) override {
    at::Tensor x = at::max_pool2d(conv1_(images), 2).relu();
    x = conv2_drop_->forward_channels(conv2_(x));
    x = at::max_pool2d(x, 2).relu();
    x = fc1_(x.flatten(1)).relu();
    return fc2_(dropout_->forward(x));
  }

 private:
  Conv2d conv1_, conv2_;
  Linear fc1_, fc2_;
  std::shared_ptr<SeededDropout> conv2_drop_, dropout_;
};

class Mlp : public Classifier {
 public:
  explicit Mlp(const ModelOptions& options)
      : dropout_(Parts(options, 0).dropout()) {
    std::vector<std::int64_t> sizes{options.channels * options.height *
                                    options.width};
    sizes.insert(sizes.end(), options.hidden.begin(), options.hidden.end());
    sizes.push_back(options.classes);
    for (std::size_t i = 0; i + 1 < sizes.size(); ++i)
      layers_.push_back(register_module("fc" + std::to_string(i + 1),
                                        Linear(sizes[i], sizes[i + 1])));
    register_module("dropout", dropout_);
  }

  at::Tensor forward(const at::Tensor& images) override {
    at::Tensor x = images.flatten(1);
    for (std::size_t i = 0; i + 1 < layers_.size(); ++i)
      x = dropout_->forward(layers_[i](x).relu());
    return layers_.back()(x);
  }

 private:
  std::vector<Linear> layers_;
  std::shared_ptr<SeededDropout> dropout_;
};

void initialize(Classifier& model, std::uint64_t seed) {
  const at::NoGradGuard no_grad;
  const auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  for (const auto& module : model.modules(/*include_self=*/false)) {
    if (const auto* conv = module->as<torch::nn::Conv2dImpl>())
      reset_parameters(conv->weight, conv->bias, generator);
    if (const auto* linear = module->as<torch::nn::LinearImpl>())
      reset_parameters(linear->weight, linear->bias, generator);
  }
}

template <class Net>
std::shared_ptr<Classifier> initialized(const ModelOptions& options) {
  auto model = std::make_shared<Net>(options);
  initialize(*model, options.seed);
  return model;
}

void validate(std::string_view name, const ModelOptions& options) {
  const auto require = [&](bool fits, const std::string& what) {
    if (!fits)
      throw InvalidArgument("the model " + std::string(name) + " " + what);
  };
  // At least one pixel must remain after the two poolings.
  const std::int64_t least = name == "cnn" ? 16 : name == "convnet" ? 4 : 1;
  require(options.height >= least && options.width >= least,
          "needs images of at least " + std::to_string(least) + " x " +
              std::to_string(least) + " pixels, not " +
              std::to_string(options.width) + " x " +
              std::to_string(options.height));
  require(options.channels >= 1 && options.classes >= 1,
          "needs at least one channel and one class");
  const double dropout = options.dropout.value_or(0);
  require(dropout >= 0 && dropout < 1,
          "cannot drop a share of " + std::to_string(dropout) +
              ": dropout must be at least 0 and below 1");
  for (const std::int64_t size : options.hidden)
    require(size >= 1,
            "cannot have a hidden layer of " + std::to_string(size) + " units");
}

bool drops_activations(const torch::nn::Module& model) {
  const auto modules = model.modules();
  return std::ranges::any_of(modules, [](const auto& module) {
    const auto* dropout = module->template as<SeededDropout>();
    return dropout != nullptr && dropout->drops();
  });
}

}  // namespace

std::shared_ptr<Classifier> make_model(std::string_view name,
                                       const ModelOptions& options) {
  validate(name, options);
  switch (known_model(name).value) {
    case ModelName::kConvnet:
      return initialized<ConvNet>(options);
    case ModelName::kCnn:
      return initialized<TutorialCnn>(options);
    case ModelName::kMlp:
      return initialized<Mlp>(options);
    case ModelName::kResnet18:
    case ModelName::kResnet34:
    case ModelName::kResnet50:
      return make_resnet(name, options);
  }
  throw InternalError("a model that was listed cannot be made");
}

void seed_dropout(const torch::nn::Module& model, std::uint64_t seed) {
  if (!drops_activations(model)) return;
  const at::Device device = model.parameters().front().device();
  if (!device.is_cpu()) {
    at::Generator generator = at::globalContext().defaultGenerator(device);
    const std::scoped_lock lock(generator.mutex());
    return generator.set_current_seed(seed);
  }
  for (const auto& module : model.modules())
    if (auto* dropout = module->as<SeededDropout>()) dropout->set_seed(seed);
}

void store_channels_last(const Classifier& model) {
  constexpr std::int64_t kOfImages = 4;
  const at::NoGradGuard no_grad;
  for (at::Tensor& parameter : model.parameters())
    if (parameter.dim() == kOfImages)
      parameter.set_data(parameter.contiguous(at::MemoryFormat::ChannelsLast));
}

std::int64_t parameter_count(const torch::nn::Module& module) {
  std::int64_t count = 0;
  for (const auto& parameter : module.parameters())
    if (parameter.requires_grad()) count += parameter.numel();
  return count;
}

}  // namespace lockstep
