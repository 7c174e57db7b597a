#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/schedulers/step_lr.h>
#include <torch/serialize.h>

#include <sstream>

#include "lockstep/base/error.h"
#include "lockstep/torch/optimizers.h"
#include "src/torch/testing/formula_parameters.h"

namespace lockstep {
namespace {

using testing::HasSubstr;
using torch::optim::AdamOptions;
using torch::optim::AdamWOptions;
using torch::optim::OptimizerParamGroup;
using torch::optim::SGDOptions;

constexpr int kFusedSteps = 100;

// Bounds on the difference after kFusedSteps steps of weights of about 1:
// LibTorch rounds products before an addition once less than Lockstep.
double tolerance_for(at::ScalarType type) {
  return type == at::kDouble ? 1e-14 : 2e-6;
}

template <class Theirs, class Ours, class Options>
void compare(const Options& options) {
  for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
    auto expected = formula_parameters(type);
    auto parameters = formula_parameters(type);
    Theirs theirs(expected, options);
    Ours ours(parameters, options);
    train_by_formula(theirs, 1, kFusedSteps);
    train_by_formula(ours, 1, kFusedSteps);
    EXPECT_LE(largest_difference(parameters, expected), tolerance_for(type));
    EXPECT_GE(largest_difference(parameters, formula_parameters(type)), 1e-3);
  }
}

TEST(FusedSGD, LearnsWhatLibTorchsDoes) {
  const auto compare_sgd = compare<torch::optim::SGD, FusedSGD, SGDOptions>;
  compare_sgd(SGDOptions(0.05));
  compare_sgd(SGDOptions(0.05).weight_decay(0.01));
  compare_sgd(SGDOptions(0.05).momentum(0.9));
  compare_sgd(SGDOptions(0.05).momentum(0.9).dampening(0.5).weight_decay(0.01));
  compare_sgd(SGDOptions(0.05).momentum(0.9).nesterov(true).weight_decay(0.01));
}

TEST(FusedAdam, LearnsWhatLibTorchsDoes) {
  const auto compare_adam = compare<torch::optim::Adam, FusedAdam, AdamOptions>;
  compare_adam(AdamOptions(0.01));
  compare_adam(
      AdamOptions(0.01).betas({0.8, 0.95}).eps(1e-5).weight_decay(0.01));
}

TEST(FusedAdamW, LearnsWhatLibTorchsDoes) {
  const auto compare_adamw =
      compare<torch::optim::AdamW, FusedAdamW, AdamWOptions>;
  compare_adamw(AdamWOptions(0.01));
  compare_adamw(AdamWOptions(0.01).betas({0.8, 0.95}).weight_decay(0.1));
}

// The reference keeps float32 weights and state, and rounds the weights after
// each step.
TEST(FusedAdam, ComputesWith16BitParametersInFloat32) {
  for (const at::ScalarType type : {at::kHalf, at::kBFloat16}) {
    auto parameters = formula_parameters(type);
    std::vector<at::Tensor> expected;
    for (const at::Tensor& tensor : parameters)
      expected.push_back(tensor.detach().to(at::kFloat).requires_grad_(true));
    FusedAdam ours(parameters, AdamOptions(0.01));
    torch::optim::Adam theirs(expected, AdamOptions(0.01));
    for (int step = 1; step <= 20; ++step) {
      set_gradients(parameters, step);
      for (std::size_t i = 0; i < parameters.size(); ++i)
        expected[i].mutable_grad() = parameters[i].grad().to(at::kFloat);
      ours.step();
      theirs.step();
      const torch::NoGradGuard no_grad;
      for (at::Tensor& tensor : expected) tensor.copy_(tensor.to(type));
    }
    for (std::size_t i = 0; i < parameters.size(); ++i)
      EXPECT_TRUE(
          at::allclose(parameters[i].to(at::kFloat), expected[i], 2e-2, 1e-3));
  }
}

TEST(FusedSGD, TakesEachGroupsOwnOptions) {
  const auto make = [](auto& optimizer_of, std::vector<at::Tensor>& tensors) {
    std::vector<OptimizerParamGroup> groups;
    groups.emplace_back(
        std::vector<at::Tensor>(tensors.begin(), tensors.begin() + 3),
        std::make_unique<SGDOptions>(SGDOptions(0.5).momentum(0.5)));
    groups.emplace_back(
        std::vector<at::Tensor>(tensors.begin() + 3, tensors.end()));
    return optimizer_of(groups);
  };
  auto expected = formula_parameters(), parameters = formula_parameters();
  const auto theirs_of = [](auto& groups) {
    return torch::optim::SGD(groups, SGDOptions(0.05));
  };
  const auto ours_of = [](auto& groups) {
    return FusedSGD(groups, SGDOptions(0.05));
  };
  auto theirs = make(theirs_of, expected);
  auto ours = make(ours_of, parameters);
  train_by_formula(theirs, 1, 10);
  train_by_formula(ours, 1, 10);
  EXPECT_LE(largest_difference(parameters, expected), 1e-5);
}

TEST(FusedSGD, TakesAGroupThatIsAddedLater) {
  auto expected = formula_parameters(), parameters = formula_parameters();
  const auto train = [](auto make, std::vector<at::Tensor>& tensors) {
    const auto middle = tensors.begin() + 3;
    auto optimizer = make(std::vector<at::Tensor>(tensors.begin(), middle));
    train_by_formula(optimizer, 1, 5);
    optimizer.add_param_group(OptimizerParamGroup(
        std::vector<at::Tensor>(middle, tensors.end()),
        std::make_unique<SGDOptions>(SGDOptions(0.02).momentum(0.5))));
    train_by_formula(optimizer, 6, 10);
  };
  const SGDOptions rule = SGDOptions(0.1).momentum(0.9);
  train([&](auto list) { return torch::optim::SGD(list, rule); }, expected);
  train([&](auto list) { return FusedSGD(list, rule); }, parameters);
  EXPECT_LE(largest_difference(parameters, expected), 1e-5);
}

TEST(FusedSGD, KeepsAFactorWhenAGroupIsAdded) {
  auto expected = formula_parameters(), parameters = formula_parameters();
  FusedSGD whole(expected, SGDOptions(0.1));
  const auto middle = parameters.begin() + 3;
  FusedSGD grown(std::vector<at::Tensor>(parameters.begin(), middle),
                 SGDOptions(0.1));
  set_gradients(expected, 1);
  set_gradients(parameters, 1);
  whole.scale_gradients(0.25);
  grown.scale_gradients(0.25);
  grown.add_param_group(
      OptimizerParamGroup(std::vector<at::Tensor>(middle, parameters.end())));
  whole.step();
  grown.step();
  EXPECT_TRUE(are_equal(parameters, expected));
}

TEST(FusedSGD, FollowsALearningRateSchedule) {
  auto expected = formula_parameters(), parameters = formula_parameters();
  torch::optim::SGD theirs(expected, SGDOptions(0.1).momentum(0.9));
  FusedSGD ours(parameters, SGDOptions(0.1).momentum(0.9));
  torch::optim::StepLR schedule_of_theirs(theirs, 2, 0.5);
  torch::optim::StepLR schedule_of_ours(ours, 2, 0.5);
  for (int step = 1; step <= 8; ++step) {
    train_by_formula(theirs, step, step);
    train_by_formula(ours, step, step);
    schedule_of_theirs.step();
    schedule_of_ours.step();
  }
  EXPECT_LE(largest_difference(parameters, expected), 1e-5);
}

// The result of `second` with the state that `first` saved, over the same
// weights.
template <class First, class Second, class Options>
std::vector<at::Tensor> learn_in_two_parts(const Options& options) {
  auto parameters = formula_parameters();
  First first(parameters, options);
  train_by_formula(first, 1, 10);
  std::stringstream file;
  torch::save(first, file);
  Second second(parameters, options);
  torch::load(second, file);
  train_by_formula(second, 11, 20);
  return parameters;
}

template <class Theirs, class Ours, class Options>
void exchange_files(const Options& options) {
  const auto whole = learn_in_two_parts<Ours, Ours>(options);
  auto in_one = formula_parameters();
  Ours ours(in_one, options);
  train_by_formula(ours, 1, 20);
  EXPECT_TRUE(are_equal(whole, in_one));
  EXPECT_LE(
      largest_difference(learn_in_two_parts<Theirs, Ours>(options), in_one),
      1e-5);
  EXPECT_LE(
      largest_difference(learn_in_two_parts<Ours, Theirs>(options), in_one),
      1e-5);
}

TEST(FusedOptimizer, ReadsLibTorchsFilesAndWritesThem) {
  exchange_files<torch::optim::SGD, FusedSGD>(SGDOptions(0.05).momentum(0.9));
  exchange_files<torch::optim::Adam, FusedAdam>(AdamOptions(0.01));
  exchange_files<torch::optim::AdamW, FusedAdamW>(AdamWOptions(0.01));
}

TEST(FusedOptimizer, LeavesParametersWithoutGradientsAlone) {
  auto parameters = formula_parameters();
  FusedAdam optimizer(parameters, AdamOptions(0.01));
  set_gradients(parameters, 1);
  parameters[5].mutable_grad() = at::Tensor();
  optimizer.step();
  EXPECT_TRUE(parameters[5].equal(formula_parameters()[5]));
  EXPECT_FALSE(parameters[6].equal(formula_parameters()[6]));
  EXPECT_EQ(optimizer.state().count(parameters[5].unsafeGetTensorImpl()), 0u);
}

TEST(FusedOptimizer, UpdatesAParameterThatIsGivenTwiceOnce) {
  auto once = formula_parameters(), twice = formula_parameters();
  FusedSGD expected(once, SGDOptions(0.05).momentum(0.9));
  auto given = twice;
  given.push_back(twice[0]);
  FusedSGD optimizer(given, SGDOptions(0.05).momentum(0.9));
  for (int step = 1; step <= 3; ++step) {
    set_gradients(once, step);
    set_gradients(twice, step);
    expected.step();
    optimizer.step();
  }
  EXPECT_TRUE(are_equal(once, twice));
}

TEST(FusedOptimizer, TakesGradientsInAnyMemoryOrder) {
  auto expected = formula_parameters(), parameters = formula_parameters();
  FusedSGD ordered(expected, SGDOptions(0.05)),
      optimizer(parameters, SGDOptions(0.05));
  set_gradients(expected, 1);
  set_gradients(parameters, 1);
  parameters[4].mutable_grad() = parameters[4].grad().contiguous();
  parameters[5].mutable_grad() = parameters[5].grad().t().contiguous().t();
  ordered.step();
  optimizer.step();
  EXPECT_TRUE(are_equal(expected, parameters));
}

TEST(FusedOptimizer, CallsTheClosureWithGradientsOn) {
  at::Tensor weight = wave({5}, 0).requires_grad_(true);
  FusedSGD optimizer({weight}, SGDOptions(0.1));
  const at::Tensor before = weight.detach().clone();
  const torch::NoGradGuard no_grad;
  const at::Tensor loss = optimizer.step([&] {
    optimizer.zero_grad();
    at::Tensor sum = weight.square().sum();
    sum.backward();
    return sum;
  });
  EXPECT_TRUE(loss.equal(before.square().sum()));
  EXPECT_TRUE(at::allclose(weight, before * 0.8));
}

TEST(FusedOptimizer, TellsAutogradThatWeightsHaveChanged) {
  at::Tensor weight = wave({5}, 0).requires_grad_(true);
  FusedSGD optimizer({weight}, SGDOptions(0.1));
  const at::Tensor loss = (weight * weight).sum();
  weight.mutable_grad() = wave({5}, 1);
  optimizer.step();
  EXPECT_THAT(message_of([&] { loss.backward(); }),
              HasSubstr("modified by an inplace operation"));
}

TEST(FusedOptimizer, ClipsAsScalingTheGradientsDoes) {
  auto expected = formula_parameters(), parameters = formula_parameters();
  torch::optim::SGD theirs(expected, SGDOptions(0.05).momentum(0.9));
  FusedSGD ours(parameters, SGDOptions(0.05).momentum(0.9));
  for (int step = 1; step <= 10; ++step) {
    set_gradients(expected, step);
    set_gradients(parameters, step);
    const double bound = step % 2 == 0 ? 1.5 : 100;  // every second step clips
    const double norm = torch::nn::utils::clip_grad_norm_(expected, bound);
    EXPECT_NEAR(ours.clip_grad_norm(bound), norm, 1e-4 * norm);
    theirs.step();
    ours.step();
  }
  EXPECT_LE(largest_difference(parameters, expected), 1e-5);
}

TEST(FusedOptimizer, ClipsByAnyNorm) {
  auto expected = formula_parameters(), parameters = formula_parameters();
  torch::optim::SGD theirs(expected, SGDOptions(0.1));
  FusedSGD ours(parameters, SGDOptions(0.1));
  set_gradients(expected, 2);
  set_gradients(parameters, 2);
  EXPECT_EQ(ours.clip_grad_norm(0.75, 1), clip_grad_norm(expected, 0.75, 1));
  theirs.step();
  ours.step();
  EXPECT_LE(largest_difference(parameters, expected), 1e-6);
}

TEST(FusedOptimizer, UnscalesThenClipsWithoutTouchingTheGradients) {
  auto expected = formula_parameters(), parameters = formula_parameters();
  FusedSGD plain(expected, SGDOptions(0.05)),
      ours(parameters, SGDOptions(0.05));
  set_gradients(expected, 1);
  set_gradients(parameters, 1);
  const double norm = plain.clip_grad_norm(1);
  for (const at::Tensor& tensor : parameters) tensor.grad().mul_(1024);
  const auto gradients = copies_of({parameters[0].grad()});
  ours.scale_gradients(1.0 / 1024);
  EXPECT_DOUBLE_EQ(ours.clip_grad_norm(1), norm);
  plain.step();
  ours.step();
  EXPECT_TRUE(are_equal(parameters, expected));
  EXPECT_TRUE(are_equal({parameters[0].grad()}, gradients));
  plain.step();  // the factor was for one step
  ours.step();
  EXPECT_FALSE(are_equal(parameters, expected));
}

TEST(FusedOptimizer, SaysWhatItCannotUpdate) {
  const auto text = [](auto options, std::vector<at::Tensor> parameters) {
    using Optimizer =
        std::conditional_t<std::is_same_v<decltype(options), SGDOptions>,
                           FusedSGD, FusedAdam>;
    EXPECT_THROW(Optimizer(parameters, options), InvalidArgument);
    return message_of([&] { Optimizer(parameters, options); });
  };
  const at::Tensor weight = wave({4, 4}, 0);
  EXPECT_THAT(text(AdamOptions(0.1).amsgrad(true), {weight}),
              HasSubstr("amsgrad"));
  EXPECT_THAT(text(SGDOptions(std::nan("")), {weight}),
              HasSubstr("learning rate cannot be nan"));
  EXPECT_THAT(text(SGDOptions(0.1), {weight, at::ones({2}, at::kLong)}),
              HasSubstr("parameter 1 of group 0 (Long [2])"));
  EXPECT_THAT(text(SGDOptions(0.1), {weight.narrow(1, 0, 2)}),
              HasSubstr("gaps or overlaps"));
  EXPECT_THAT(text(SGDOptions(0.1), {at::empty({2}, at::kMeta)}),
              HasSubstr("on the meta device"));
  EXPECT_THAT(text(SGDOptions(0.1), {at::ones({2}, at::kComplexFloat)}),
              HasSubstr("view_as_real"));
}

TEST(FusedOptimizer, RefusesASparseGradientBeforeAnyParameterChanges) {
  auto parameters = formula_parameters();
  FusedSGD optimizer(parameters, SGDOptions(0.1));
  set_gradients(parameters, 1);
  parameters[5].mutable_grad() = parameters[5].grad().to_sparse();
  EXPECT_THAT(message_of([&] { optimizer.step(); }),
              HasSubstr("its gradient is sparse"));
  EXPECT_TRUE(are_equal(parameters, formula_parameters()));
}

}  // namespace
}  // namespace lockstep
