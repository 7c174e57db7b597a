// Tests of other code that uses the one slot for a hook that a parameter has,
// after the module was wrapped: LibTorch's call replaces what is there.
#include "src/torch/gradient/autograd_hooks.h"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include "lockstep/torch/horovod.h"
#include "src/comm/testing/run_ranks.h"
#include "src/torch/testing/small_nets.h"

namespace lockstep {
namespace {

struct CountingHook : torch::autograd::PostAccumulateGradHook {
  explicit CountingHook(int& calls) : calls_(calls) {}
  void operator()(const at::Tensor& /*parameter*/) override { ++calls_; }
  int& calls_;
};

void set_hooks(const std::vector<at::Tensor>& parameters, int& calls) {
  for (const at::Tensor& parameter : parameters)
    torch::autograd::impl::set_post_acc_grad_hooks(
        parameter, std::make_unique<CountingHook>(calls));
}

using HookedModel = DistributedDataParallel<Net>;

void expect_average(HookedModel& model, const Group& group, int step) {
  model.zero_grad();
  backward(model, *group, step);
  EXPECT_LE(largest_difference(gradients_of(*model),
                               gradients_of_one_process(2, step)),
            kTolerance);
}

// Issue 43: pytorch #76464.
TEST(GradientHooks, GoOnBehindHooksThatReplaceThemBetweenSteps) {
  for (const bool all : {true, false})
    run_ranks(kBackend, 2, [&](const Group& group) {
      HookedModel model(Net(), small_buckets(group));
      const auto set = [&](int& calls) {
        set_hooks(all ? model.parameters()
                      : std::vector{model->second->weight, model->third->bias},
                  calls);
      };
      const int hooked = all ? 6 : 2;
      int first = 0, second = 0;
      set(first);
      expect_average(model, group, 0);
      EXPECT_EQ(first, hooked);
      set(second);
      expect_average(model, group, 1);
      expect_average(model, group, 2);
      EXPECT_EQ(first, hooked);
      EXPECT_EQ(second, 2 * hooked);
    });
}

// After the gradient of the module's output has come.
TEST(GradientHooks, GoOnIfTheBackwardPassReplacesOrRemovesThem) {
  for (const bool removes : {false, true})
    run_ranks(kBackend, 2, [&](const Group& group) {
      HookedModel model(Net(), small_buckets(group));
      int calls = 0;
      const Share share = share_of_batch(1, group->rank(), 2, 2);
      const auto output = model(share.input);
      output.register_hook([&](const at::Tensor& gradient) {
        if (!removes) set_hooks(model.parameters(), calls);
        for (const at::Tensor& parameter : model.parameters())
          if (removes)
            torch::autograd::impl::set_post_acc_grad_hooks(parameter, nullptr);
        return gradient;
      });
      loss_of(output, share.target).backward();
      EXPECT_LE(largest_difference(gradients_of(*model),
                                   gradients_of_one_process(2, 1)),
                kTolerance);
      EXPECT_EQ(calls, removes ? 0 : 6);
    });
}

struct HookForOnce : torch::autograd::PostAccumulateGradHook {
  explicit HookForOnce(int& calls) : calls_(calls) {}
  void operator()(const at::Tensor& parameter) override {
    ++calls_;
    torch::autograd::impl::set_post_acc_grad_hooks(parameter, nullptr);
  }
  int& calls_;
};

TEST(GradientHooks, GoOnIfAHookRemovesItself) {
  for (const bool before_wrapping : {true, false})
    run_ranks(kBackend, 2, [&](const Group& group) {
      int calls = 0;
      const auto set = [&](const std::vector<at::Tensor>& parameters) {
        for (const at::Tensor& parameter : parameters)
          torch::autograd::impl::set_post_acc_grad_hooks(
              parameter, std::make_unique<HookForOnce>(calls));
      };
      Net net;
      if (before_wrapping) set(net.parameters());
      HookedModel model(std::move(net), small_buckets(group));
      if (!before_wrapping) set(model.parameters());
      for (int step = 0; step < 3; ++step) expect_average(model, group, step);
      EXPECT_EQ(calls, 6);
    });
}

TEST(GradientHooks, GoOnBehindHooksThatReplaceThemAfterTheForwardPass) {
  run_ranks(kBackend, 2, [](const Group& group) {
    HookedModel model(Net(), small_buckets(group));
    int calls = 0;
    // The first parameter to get its gradient, and all.
    for (const auto& hooked :
         {std::vector{model->third->bias}, model.parameters()}) {
      model.zero_grad();
      const Share share = share_of_batch(1, group->rank(), 2, 2);
      const auto output = model(share.input);
      set_hooks(hooked, calls);
      loss_of(output, share.target).backward();
      EXPECT_LE(largest_difference(gradients_of(*model),
                                   gradients_of_one_process(2, 1)),
                kTolerance);
    }
    EXPECT_EQ(calls, 1 + 6);
  });
}

// The wrapper finds no tensor in its result.
struct NetOfAStruct : Net {
  struct Result {
    at::Tensor value;
  };
  Result forward(const at::Tensor& input) { return {Net::forward(input)}; }
};

TEST(GradientHooks, GoOnIfTheWrapperKnowsNoOutput) {
  run_ranks(kBackend, 2, [](const Group& group) {
    DistributedDataParallel model(std::make_shared<NetOfAStruct>(),
                                  small_buckets(group));
    const Share share = share_of_batch(0, group->rank(), 2, 2);
    int calls = 0;
    for (const auto& hooked :
         {std::vector{model->third->bias}, model.parameters()}) {
      model.zero_grad();
      const auto result = model(share.input);
      set_hooks(hooked, calls);
      loss_of(result.value, share.target).backward();
      EXPECT_LE(
          largest_difference(gradients_of(*model), gradients_of_one_process(2)),
          kTolerance);
    }
  });
}

TEST(GradientHooks, OfHorovodsOptimizerGoOnToo) {
  for (const bool all : {true, false})
    run_ranks(kBackend, 2, [&](const Group& group) {
      Net net;
      horovod::DistributedOptimizer optimizer(
          torch::optim::SGD(net.parameters(), 0.1), net.named_parameters(),
          {.group = group});
      int calls = 0;
      set_hooks(all ? net.parameters() : std::vector{net.first->weight}, calls);
      for (int step = 0; step < 2; ++step) {
        optimizer.zero_grad();
        backward(net, *group, step);
        EXPECT_LE(largest_difference(gradients_of(net),
                                     gradients_of_one_process(2, step)),
                  kTolerance);
      }
    });
}

// A step of two backward passes over two parts of the model.
TEST(GradientHooks, OfHorovodsOptimizerGoOnBetweenTwoPassesOfAStep) {
  run_ranks(kBackend, 2, [](const Group& group) {
    torch::nn::Linear one(1, 1), other(1, 1);
    auto parameters = one->named_parameters();
    for (const auto& item : other->named_parameters())
      parameters.insert("other." + item.key(), item.value());
    horovod::DistributedOptimizer optimizer(
        torch::optim::SGD(parameters.values(), 0.1), parameters,
        {.group = group});
    const auto backward_of = [&](torch::nn::Linear part) {
      part->forward(torch::full({1, 1}, group->rank() + 1.0F)).sum().backward();
    };
    int calls = 0;
    backward_of(one);
    set_hooks(other->parameters(), calls);
    backward_of(other);
    optimizer.synchronize();
    EXPECT_EQ(one->weight.grad().item<double>(), 1.5);
    EXPECT_EQ(other->weight.grad().item<double>(), 1.5);
    EXPECT_EQ(calls, 2);
  });
}

}  // namespace
}  // namespace lockstep
