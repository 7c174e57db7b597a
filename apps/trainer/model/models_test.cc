#include "apps/trainer/model/models.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include <array>
#include <string>
#include <string_view>

#include "src/base/testing/error_text.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

at::Tensor some_images(std::int64_t count) {
  return at::linspace(-1, 1, count * 28 * 28).reshape({count, 1, 28, 28});
}

std::string refusal_of(const std::string& name, const ModelOptions& options) {
  return error_text([&] { make_model(name, options); });
}

TEST(Models, HaveTheParametersThatTheDocumentsSay) {
  EXPECT_EQ(parameter_count(*make_model("convnet")), 421'642);
  EXPECT_EQ(parameter_count(*make_model("cnn")), 21'840);
  EXPECT_EQ(parameter_count(*make_model("mlp", {.hidden = {30, 20}})),
            784 * 30 + 30 + 30 * 20 + 20 + 20 * 10 + 10);
}

TEST(Models, GiveALogitPerClassForAnyImageSize) {
  for (const auto name : names_in(kModels)) {
    const auto model = make_model(
        name, {.channels = 3, .height = 32, .width = 20, .classes = 7});
    const at::Tensor logits = model->forward(at::ones({5, 3, 32, 20}));
    EXPECT_EQ(logits.sizes(), at::IntArrayRef({5, 7})) << name;
  }
}

TEST(Models, StartFromTheWeightsThatPyTorchGivesTheSameLayers) {
  torch::manual_seed(7);
  const torch::nn::Conv2d conv1(torch::nn::Conv2dOptions(1, 10, 5));
  const torch::nn::Conv2d conv2(torch::nn::Conv2dOptions(10, 20, 5));
  const torch::nn::Linear fc1(320, 50), fc2(50, 10);
  const auto model = make_model("cnn", {.seed = 7});
  const auto ours = model->named_parameters();
  EXPECT_TRUE(at::equal(ours["conv1.weight"], conv1->weight));
  EXPECT_TRUE(at::equal(ours["conv1.bias"], conv1->bias));
  EXPECT_TRUE(at::equal(ours["conv2.weight"], conv2->weight));
  EXPECT_TRUE(at::equal(ours["fc1.weight"], fc1->weight));
  EXPECT_TRUE(at::equal(ours["fc2.bias"], fc2->bias));
}

constexpr std::array<std::string_view, 3> kModelsWithDropout{"convnet", "cnn",
                                                             "mlp"};

TEST(Models, DropTheSameWithTheSameSeedWhateverElseDrawsNumbers) {
  const at::Tensor images = some_images(4);
  for (const auto name : kModelsWithDropout) {
    const ModelOptions options{.dropout = 0.5, .dropout_seed = 3};
    const auto one = make_model(name, options);
    const auto two = make_model(name, options);
    const at::Tensor first = one->forward(images);
    at::rand({100});
    EXPECT_TRUE(at::equal(first, two->forward(images))) << name;
    EXPECT_FALSE(at::equal(first, one->forward(images))) << name;
  }
}

TEST(Models, DropNothingInEvaluation) {
  const at::Tensor images = some_images(4);
  for (const auto name : kModelsWithDropout) {
    const auto model = make_model(name, {.dropout = 0.5});
    model->eval();
    EXPECT_TRUE(at::equal(model->forward(images), model->forward(images)))
        << name;
  }
}

TEST(Models, RefuseAnUnknownNameAndWhatCannotWork) {
  EXPECT_THAT(refusal_of("convnets", {}),
              HasSubstr("did you mean \"convnet\""));
  EXPECT_THAT(refusal_of("cnn", {.height = 15}), HasSubstr("not 28 x 15"));
  EXPECT_THAT(refusal_of("mlp", {.hidden = {4, 0}}), HasSubstr("of 0 units"));
  EXPECT_THAT(refusal_of("mlp", {.dropout = 1}), HasSubstr("dropout"));
}

}  // namespace
}  // namespace lockstep
