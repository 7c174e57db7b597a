#include "apps/trainer/model/resnet.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "src/base/testing/error_text.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const ModelOptions kImageNet{
    .channels = 3, .height = 224, .width = 224, .classes = 1000};
const ModelOptions kCifar{.channels = 3, .height = 32, .width = 32};

std::vector<std::string> names_beginning(const torch::nn::Module& model,
                                         const std::string& beginning) {
  std::vector<std::string> names;
  for (const auto& item : model.named_parameters())
    if (item.key().starts_with(beginning)) names.push_back(item.key());
  return names;
}

TEST(ResNet, HasAsManyParametersAsTorchvisions) {
  EXPECT_EQ(parameter_count(*make_model("resnet18", kImageNet)), 11'689'512);
  EXPECT_EQ(parameter_count(*make_model("resnet34", kImageNet)), 21'797'672);
  EXPECT_EQ(parameter_count(*make_model("resnet50", kImageNet)), 25'557'032);
}

TEST(ResNet, HasTorchvisionsNamesInItsOrder) {
  const auto model = make_model("resnet18", kImageNet);
  EXPECT_EQ(model->named_parameters().size(), 62u);
  EXPECT_EQ(model->named_buffers().size(), 60u);
  EXPECT_EQ(model->named_parameters().front().key(), "conv1.weight");
  EXPECT_EQ(model->named_parameters().back().key(), "fc.bias");
  EXPECT_THAT(names_beginning(*model, "layer2.0."),
              ElementsAre("layer2.0.conv1.weight", "layer2.0.bn1.weight",
                          "layer2.0.bn1.bias", "layer2.0.conv2.weight",
                          "layer2.0.bn2.weight", "layer2.0.bn2.bias",
                          "layer2.0.downsample.0.weight",
                          "layer2.0.downsample.1.weight",
                          "layer2.0.downsample.1.bias"));
  EXPECT_TRUE(model->named_buffers().contains(
      "layer2.0.downsample.1.num_batches_tracked"));
  const auto deep = make_model("resnet50", kImageNet);
  EXPECT_EQ(deep->named_parameters().size(), 161u);
  EXPECT_THAT(names_beginning(*deep, "layer1.2.conv"),
              ElementsAre("layer1.2.conv1.weight", "layer1.2.conv2.weight",
                          "layer1.2.conv3.weight"));
}

TEST(ResNet, TakesTheStemThatFitsTheImages) {
  const auto stem_for = [](std::int64_t height, std::int64_t width) {
    const auto model = make_model(
        "resnet18", {.channels = 3, .height = height, .width = width});
    return model->named_parameters()["conv1.weight"].sizes().vec();
  };
  const std::vector<std::int64_t> small{64, 3, 3, 3}, large{64, 3, 7, 7};
  EXPECT_EQ(stem_for(32, 32), small);
  EXPECT_EQ(stem_for(200, 63), small);
  EXPECT_EQ(stem_for(64, 64), large);
  EXPECT_EQ(stem_for(224, 224), large);
}

TEST(ResNet, HasTheStemThatIsNamedWhateverTheImages) {
  for (const std::int64_t side : {32, 64})
    for (const Stem stem : {Stem::kImageNet, Stem::kCifar}) {
      const auto model = make_model(
          "resnet18",
          {.channels = 3, .height = side, .width = side, .stem = stem});
      const at::Tensor weight = model->named_parameters()["conv1.weight"];
      EXPECT_EQ(weight.size(2), stem == Stem::kImageNet ? 7 : 3);
      EXPECT_EQ(stem_of_weight(weight), stem);
      model->eval();
      EXPECT_EQ(model->forward(at::ones({1, 3, side, side})).size(1), 10);
    }
}

TEST(ResNet, GivesALogitPerClassFromTheSmallestImagesOn) {
  for (const std::int64_t side : {9, 28, 64, 80}) {
    const auto model = make_model(
        "resnet18",
        {.channels = 2, .height = side, .width = side + 3, .classes = 7});
    // A batch of one in training: batch normalisation needs several positions.
    const at::Tensor logits = model->forward(at::ones({1, 2, side, side + 3}));
    EXPECT_EQ(logits.sizes(), at::IntArrayRef({1, 7})) << side;
  }
}

TEST(ResNet, StartsFromNormalConvolutionsAndNeutralNorms) {
  const auto model = make_model("resnet34", kCifar);
  for (const auto& item : model->named_parameters()) {
    const at::Tensor& weight = item.value();
    if (weight.dim() == 4) {
      const double fan_out = static_cast<double>(weight[0][0].numel()) *
                             static_cast<double>(weight.size(0));
      EXPECT_NEAR(weight.std().item<double>() * std::sqrt(fan_out / 2), 1, 0.1)
          << item.key();
    } else if (item.key().find("fc") == std::string::npos) {
      const bool is_bias = item.key().ends_with("bias");
      EXPECT_TRUE(weight.eq(is_bias ? 0 : 1).all().item<bool>()) << item.key();
    }
  }
}

TEST(ResNet, StartsFromTheSameWeightsWithTheSameSeedOnly) {
  ModelOptions options = kCifar;
  options.seed = 5;
  const auto first = make_model("resnet18", options)->parameters();
  at::rand({100});
  const auto again = make_model("resnet18", options)->parameters();
  options.seed = 6;
  const auto other = make_model("resnet18", options)->parameters();
  for (std::size_t i = 0; i < first.size(); ++i)
    EXPECT_TRUE(at::equal(first[i], again[i])) << i;
  EXPECT_FALSE(at::equal(first.front(), other.front()));
}

TEST(ResNet, RefusesDropoutAndImagesOfWhichNothingWouldBeLeft) {
  EXPECT_THAT(error_text([] { make_model("resnet18", {.dropout = 0.5}); }),
              HasSubstr("resnet18 has no dropout"));
  EXPECT_THAT(error_text([] { make_model("resnet50", {.height = 8}); }),
              HasSubstr("at least 9 x 9 pixels, not 28 x 8"));
  EXPECT_THAT(error_text([] { make_resnet("resnet99", {}); }),
              HasSubstr("resnet99"));
}

}  // namespace
}  // namespace lockstep
