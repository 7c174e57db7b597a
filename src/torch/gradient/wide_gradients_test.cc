// Tests of gradients with another type than their parameters, as
// set_grad_dtype() gives, and of aliases of parameters that autograd must
// recognise.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/autograd.h>
#include <torch/nn/cloneable.h>

#include "lockstep/base/error.h"
#include "lockstep/torch/data_parallel.h"
#include "lockstep/torch/distributed_data_parallel.h"
#include "lockstep/torch/logical_shards.h"
#include "lockstep/torch/optimizers.h"
#include "lockstep/torch/strategies.h"
#include "lockstep/torch/zero_redundancy_optimizer.h"
#include "src/comm/testing/run_ranks.h"
#include "src/torch/gradient/gradient_buckets.h"
#include "src/torch/testing/small_nets.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using torch::optim::SGDOptions;

// bfloat16 has 8 bits: after 1 comes 1 + 1/128.
constexpr double kFine = 1 + 1.0 / 256;

struct Wide : torch::nn::Cloneable<Wide> {
  explicit Wide(std::int64_t elements = 8) : count(elements) { reset(); }
  void reset() override {
    weight = register_parameter("weight", torch::zeros({count}, at::kBFloat16));
    weight.set_grad_dtype(at::kFloat);
  }
  at::Tensor forward(const at::Tensor& factor) {
    return (weight.to(at::kFloat) * factor.mean()).sum().unsqueeze(0);
  }
  std::int64_t count;
  at::Tensor weight;
};

// Autograd gives each rank a bfloat16 number; the average is not one.
at::Tensor factor_of(const Group& group) {
  return torch::full({2}, 1 + group->rank() / 128.0);
}

void expect_fine(const at::Tensor& gradient, double number = kFine) {
  EXPECT_EQ(gradient.scalar_type(), at::kFloat);
  EXPECT_TRUE((gradient == number).all().item<bool>());
}

TEST(WideGradients, AreReducedInTheirType) {
  run_ranks(kBackend, 2, [](const Group& group) {
    for (const std::int64_t count : {8, 65536})
      for (const bool as_view : {true, false})
        for (const bool unused : {true, false}) {
          auto model = DistributedDataParallel(
              Wide(count), {.group = group,
                            .find_unused_parameters = unused,
                            .gradient_as_bucket_view = as_view});
          model.forward(factor_of(group)).backward();
          expect_fine(model->weight.grad());
          model.zero_grad();
          model.forward(factor_of(group)).backward();
          expect_fine(model->weight.grad());
        }
  });
}

TEST(WideGradients, AreAddedUpByLogicalShardsAndDataParallel) {
  run_ranks(kBackend, 2, [](const Group& group) {
    const auto net = std::make_shared<Wide>();
    LogicalShards shards(net, {.group = group, .count = 4});
    shards.run([&](const LogicalShard&) {
      net->forward(factor_of(group)).backward();
    });
    expect_fine(net->weight.grad());
  });
  const auto net = std::make_shared<Wide>();
  data_parallel::DataParallel<Wide> model(net,
                                          {.devices = {at::kCPU, at::kCPU}});
  model.forward(torch::tensor({1.0F, 1 + 1.0F / 128})).sum().backward();
  expect_fine(net->weight.grad(), 2 * kFine);
}

// Like a float32 weight that is rounded after each step.
TEST(WideGradients, KeepTheirDigitsInAFusedStep) {
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    const at::Tensor weight = wave({5, 7}, 0).to(type).t().requires_grad_();
    const at::Tensor wide = weight.detach().to(at::kFloat).requires_grad_();
    FusedAdam ours({weight}, torch::optim::AdamOptions(0.01));
    FusedAdam expected({wide}, torch::optim::AdamOptions(0.01));
    for (int step = 1; step < 6; ++step) {
      weight.mutable_grad() = wave({7, 5}, step) * kFine;
      wide.mutable_grad() = weight.grad().clone();
      const auto version = weight._version();
      ours.step();
      expected.step();
      EXPECT_GT(weight._version(), version);
      const torch::NoGradGuard no_grad;
      wide.copy_(wide.to(type));
      ASSERT_TRUE(weight.to(at::kFloat).equal(wide)) << step;
    }
  }
}

TEST(WideGradients, AreRefusedByAShardedOptimizerOnEveryRank) {
  run_ranks(kBackend, 2, [](const Group& group) {
    for (const bool averages : {true, false}) {
      auto model = DistributedDataParallel(
          Wide(), {.group = group, .average_gradients = !averages});
      ZeroRedundancyOptimizer optimizer(
          model.parameters(), SGDOptions(1),
          {.group = group, .averages_gradients = averages});
      model.forward(factor_of(group)).backward();
      EXPECT_THAT(message_of([&] { optimizer.step(); }),
                  AllOf(HasSubstr("parameter 0 of group 0"),
                        HasSubstr("the type of its gradient is wider")));
    }
  });
}

TEST(WideGradients, OfATypeThatWasNotAnnouncedAreRefused) {
  run_ranks(kBackend, 1, [](const Group& group) {
    const at::Tensor weight = torch::zeros({8}).requires_grad_();
    const BucketPlan plan =
        plan_buckets(std::vector<ParameterSize>(1, {.elements = 8}));
    GradientBuckets buckets(std::vector{weight}, plan, *group);
    weight.mutable_grad() = torch::zeros({8}, at::kDouble);
    EXPECT_THAT(message_of([&] { buckets.take(0, weight, "weight"); }),
                AllOf(HasSubstr("weight cannot be reduced"),
                      HasSubstr("its type is Double, expected Float")));
  });
}

struct Two : torch::nn::Cloneable<Two> {
  Two() { reset(); }
  void reset() override {
    first = register_module("first", torch::nn::Linear(4, 4));
    second = register_module("second", torch::nn::Linear(4, 1));
  }
  at::Tensor forward(const at::Tensor& input) {
    return second(torch::relu(first(input)));
  }
  torch::nn::Linear first{nullptr}, second{nullptr};
};

void change(const at::Tensor& weight) {
  const torch::NoGradGuard no_grad;
  at::Tensor(weight).mul_(100);
}

TEST(DataParallelAliases, NoticeAWeightThatChangesBeforeBackward) {
  const auto net = std::make_shared<Two>();
  data_parallel::DataParallel<Two> model(net,
                                         {.devices = {at::kCPU, at::kCPU}});
  for (int pass = 0; pass < 2; ++pass) {
    model.forward(torch::ones({4, 4})).sum().backward();
    const at::Tensor loss = model.forward(torch::ones({4, 4})).sum();
    change(net->second->weight);
    EXPECT_THAT(message_of([&] { loss.backward(); }),
                HasSubstr("modified by an inplace operation"));
    net->second->weight.set_data(torch::ones({1, 4}));
  }
  model.forward(torch::ones({4, 4})).sum().backward();
}

// Through the gradient of each replica's input, which no wrapper sees.
TEST(CentralStorageAliases, NoticeAWeightThatChangesBeforeBackward) {
  strategies::CentralStorageStrategy strategy(
      {.devices = {at::kCPU, at::kCPU}});
  auto net = strategy.create([] { return std::make_shared<Two>(); });
  std::vector<at::Tensor> inputs(2), losses(2);
  strategy.run([&](const strategies::ReplicaContext& here) {
    const auto index = static_cast<std::size_t>(here.local_replica);
    inputs[index] = torch::ones({4, 4}).requires_grad_();
    losses[index] = net[here](inputs[index]).sum();
  });
  change(net.local(0)->second->weight);
  for (std::size_t i = 0; i < 2; ++i)
    EXPECT_THAT(
        message_of([&] { torch::autograd::grad({losses[i]}, {inputs[i]}); }),
        HasSubstr("modified by an inplace operation"));
}

}  // namespace
}  // namespace lockstep
