// Tests of modules that change after they were wrapped.
#include "src/torch/ddp/module_snapshot.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>

#include "lockstep/base/error.h"
#include "lockstep/torch/distributed_data_parallel.h"
#include "src/comm/testing/run_ranks.h"
#include "src/torch/testing/small_nets.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

// Checks the message of forward() after `change`, on every rank.
void expect_refusal(const std::function<void(Net&)>& change,
                    const std::string& text) {
  run_ranks(kBackend, 2, [&](const Group& group) {
    auto model = DistributedDataParallel(Net(), {.group = group});
    backward(model, *group);
    change(*model);
    const auto forward = [&] { model(wave({4, 6}, 0)); };
    EXPECT_THROW(forward(), InvalidArgument);
    EXPECT_THAT(message_of(forward), HasSubstr("parameter " + text));
    EXPECT_THAT(message_of(forward), HasSubstr("make a new one"));
    EXPECT_THAT(message_of(forward), HasSubstr("call module()->forward()"));
    EXPECT_NO_THROW(group->barrier().wait());
  });
}

TEST(ModuleSnapshot, SeesAParameterThatWasAdded) {
  expect_refusal(
      [](Net& net) { net.register_parameter("scale", torch::ones({1})); },
      "scale has changed since the module was wrapped: it is new");
}

TEST(ModuleSnapshot, SeesAParameterThatWasReplaced) {
  expect_refusal(
      [](Net& net) {
        net.second = net.replace_module("second", torch::nn::Linear(8, 5));
      },
      "second.weight has changed since the module was wrapped: another tensor "
      "has replaced it");
}

TEST(ModuleSnapshot, SeesAParameterThatWasRemoved) {
  expect_refusal([](Net& net) { net.unregister_module("third"); },
                 "third.weight has changed since the module was wrapped: it no "
                 "longer exists");
}

TEST(ModuleSnapshot, SeesThatAParameterWasFrozenOrThawed) {
  expect_refusal([](Net& net) { net.third->bias.requires_grad_(false); },
                 "third.bias has changed since the module was wrapped: it "
                 "no longer requires a gradient");
  run_ranks(kBackend, 2, [](const Group& group) {
    Net net;
    net.first->bias.requires_grad_(false);
    auto model = DistributedDataParallel(std::move(net), {.group = group});
    model->first->bias.requires_grad_(true);
    EXPECT_THAT(message_of([&] {
                  model(wave({4, 6}, 0));
                }),
                HasSubstr("first.bias has changed since the module was "
                          "wrapped: it requires a gradient now"));
  });
}

TEST(ModuleSnapshot, SeesAnotherShapeOrType) {
  expect_refusal(
      [](Net& net) {
        net.first->weight.set_data(torch::ones({8, 7}));
      },
      "first.weight has changed since the module was wrapped: its shape is "
      "[8, 7], and was [8, 6]");
  expect_refusal([](Net& net) { net.to(at::kDouble); },
                 "first.weight has changed since the module was wrapped: its "
                 "type is Double, and was Float");
}

// Linear registers the bias that it does not have as an undefined tensor.
struct Nested : torch::nn::Module {
  Nested() {
    using torch::nn::LinearOptions;
    inner = register_module(
        "inner", torch::nn::Sequential(
                     torch::nn::Linear(LinearOptions(6, 4).bias(false)),
                     torch::nn::Linear(4, 3)));
    outer = register_module("outer",
                            torch::nn::Linear(LinearOptions(3, 2).bias(false)));
    register_parameter("scale", torch::ones({1}));
  }
  torch::nn::Sequential inner{nullptr};
  torch::nn::Linear outer{nullptr};
};

TEST(ModuleSnapshot, ReadsModulesInModulesAsParametersDoes) {
  Nested net;
  const ModuleSnapshot snapshot(net);
  EXPECT_NO_THROW(snapshot.check(net));
  net.outer->weight.requires_grad_(false);
  EXPECT_THAT(message_of([&] { snapshot.check(net); }),
              HasSubstr("parameter outer.weight has changed"));
  net.outer->weight.requires_grad_(true);
  EXPECT_NO_THROW(snapshot.check(net));
  net.inner->push_back(torch::nn::Linear(2, 2));
  EXPECT_THAT(message_of([&] { snapshot.check(net); }),
              HasSubstr("parameter inner.2.weight has changed since the module "
                        "was wrapped: it is new"));
}

// Programs that train a generator freeze its discriminator like this.
TEST(ModuleSnapshot, LetsAWholeModuleBeFrozenForAPass) {
  run_ranks(kBackend, 2, [](const Group& group) {
    auto generator = DistributedDataParallel(Net(), {.group = group});
    auto critic = DistributedDataParallel(
        std::make_shared<torch::nn::LinearImpl>(3, 1), {.group = group});
    const at::Tensor input = torch::ones({2, 6}) * (group->rank() + 1);
    for (int step = 0; step < 2; ++step) {
      for (const at::Tensor& weight : critic.parameters())
        weight.requires_grad_(false);
      generator.zero_grad();
      critic(generator(input)).sum().backward();
      EXPECT_TRUE(generator->third->bias.grad().defined());
      EXPECT_FALSE(critic->bias.grad().defined());
      for (const at::Tensor& weight : critic.parameters())
        weight.requires_grad_(true);
      const at::Tensor scores = critic(generator(input).detach());
      (scores.sum() * (group->rank() + 1)).backward();
      EXPECT_EQ(critic->bias.grad().item<double>(), 3);
      critic.zero_grad();
    }
  });
}

TEST(ModuleSnapshot, IsNotLookedAtWithoutGradientsOrOtherRanks) {
  for (const int ranks : {1, 2})
    run_ranks(kBackend, ranks, [&](const Group& group) {
      auto model = DistributedDataParallel(Net(), {.group = group});
      model->register_parameter("scale", torch::ones({1}));
      torch::NoGradGuard no_grad;
      if (ranks == 1) at::GradMode::set_enabled(true);
      EXPECT_NO_THROW(model(wave({4, 6}, 0)));
    });
}

}  // namespace
}  // namespace lockstep
