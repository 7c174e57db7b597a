#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/utils/clip_grad.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "lockstep/base/error.h"
#include "lockstep/torch/optimizers.h"
#include "src/torch/optim/gradient_norm.h"
#include "src/torch/testing/formula_parameters.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::vector<at::Tensor> gradients_of_list(
    const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& tensor : tensors) gradients.push_back(tensor.grad());
  return gradients;
}

TEST(ClipGradNorm, DoesWhatPyTorchsDoes) {
  for (const at::ScalarType type : {at::kFloat, at::kDouble})
    for (const double bound : {0.0, 0.5, 1000.0}) {
      const auto expected = formula_parameters(type);
      const auto parameters = formula_parameters(type);
      set_gradients(expected, 3);
      set_gradients(parameters, 3);
      const double norm = torch::nn::utils::clip_grad_norm_(expected, bound);
      EXPECT_NEAR(clip_grad_norm(parameters, bound), norm, 1e-5 * norm);
      EXPECT_LE(largest_difference(gradients_of_list(parameters),
                                   gradients_of_list(expected)),
                1e-6);
    }
}

TEST(ClipGradNorm, DoesWhatPyTorchsDoesForAnyNorm) {
  for (const double p : {0.5, 1.0, 2.0, 3.5, kInfinity})
    for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
      SCOPED_TRACE(p);
      const auto expected = formula_parameters(type);
      const auto parameters = formula_parameters(type);
      for (const auto& list : {expected, parameters}) {
        set_gradients(list, 3);
        // LibTorch cannot take the largest element of an empty tensor.
        at::Tensor empty = list[2];
        empty.mutable_grad() = at::Tensor();
      }
      const double norm = torch::nn::utils::clip_grad_norm_(expected, 0.25, p);
      EXPECT_NEAR(clip_grad_norm(parameters, 0.25, p), norm, 1e-5 * norm);
      EXPECT_NEAR(grad_norm(parameters, p), 0.25, 1e-5);
      for (std::size_t i = 0; i < parameters.size(); ++i) {
        if (i == 2) continue;
        EXPECT_TRUE(
            at::allclose(parameters[i].grad(), expected[i].grad(), 1e-5, 1e-9));
      }
    }
}

TEST(ClipGradNorm, LeavesOutGradientsWithoutElements) {
  const auto parameters = formula_parameters();
  set_gradients(parameters, 1);
  double largest = 0;
  for (const at::Tensor& parameter : parameters)
    if (parameter.numel() > 0)
      largest = std::max(largest, parameter.grad().abs().max().item<double>());
  EXPECT_EQ(grad_norm(parameters, kInfinity), largest);
}

TEST(ClipGradNorm, RefusesWhatIsNoNorm) {
  const auto parameters = formula_parameters();
  set_gradients(parameters, 1);
  for (const double p : {0.0, -1.0, -kInfinity, std::nan("")})
    EXPECT_THAT(message_of([&] { clip_grad_norm(parameters, 1, p); }),
                HasSubstr("use a p above 0"));
}

TEST(ClipGradNorm, LeavesShortGradientsAsTheyAre) {
  const auto parameters = formula_parameters();
  set_gradients(parameters, 1);
  const auto before = copies_of(gradients_of_list(parameters));
  clip_grad_norm(parameters, 1e6);
  EXPECT_TRUE(are_equal(gradients_of_list(parameters), before));
}

TEST(ClipGradNorm, CountsAParameterThatIsGivenTwiceOnce) {
  const auto parameters = formula_parameters();
  set_gradients(parameters, 1);
  auto twice = parameters;
  twice.push_back(parameters[5]);
  EXPECT_EQ(grad_norm(twice), grad_norm(parameters));
}

TEST(ClipGradNorm, OfParametersWithoutGradientsIsZero) {
  EXPECT_EQ(grad_norm(formula_parameters()), 0);
  EXPECT_EQ(clip_grad_norm({}, 1), 0);
}

TEST(ClipGradNorm, TellsWhenGradientsAreNoNumbers) {
  const auto parameters = formula_parameters();
  set_gradients(parameters, 1);
  parameters[1].grad()[3] = std::numeric_limits<float>::infinity();
  EXPECT_EQ(grad_norm(parameters), std::numeric_limits<double>::infinity());
  EXPECT_EQ(clip_coefficient(std::numeric_limits<double>::infinity(), 1), 0);
  parameters[1].grad()[3] = std::nanf("");
  EXPECT_TRUE(std::isnan(grad_norm(parameters)));
  EXPECT_TRUE(std::isnan(clip_coefficient(std::nan(""), 1)));
}

TEST(ClipGradNorm, SaysWhatItCannotClip) {
  const auto parameters = formula_parameters();
  set_gradients(parameters, 1);
  EXPECT_THROW(clip_grad_norm(parameters, -1), InvalidArgument);
  EXPECT_THROW(clip_grad_norm(parameters, std::nan("")), InvalidArgument);
  at::Tensor sparse = parameters[5];
  sparse.mutable_grad() = sparse.grad().to_sparse();
  EXPECT_THAT(message_of([&] { grad_norm(parameters); }),
              HasSubstr("expected a dense"));
}

}  // namespace
}  // namespace lockstep
