// Tests of other code that uses the one slot for a hook that a parameter has,
// after the module was wrapped: LibTorch's call replaces what is there.
#include "src/torch/reducer/autograd_hooks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include "lockstep/base/error.h"
#include "lockstep/torch/distributed_optimizer.h"
#include "src/comm/testing/run_ranks.h"
#include "src/torch/testing/small_nets.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

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

// The wrapper puts its hooks back when the output's gradient comes, and these
// replace them after that.
TEST(GradientHooks, ThatABackwardPassReplacesOrRemovesAreAnErrorOnEveryRank) {
  for (const bool removes : {false, true})
    run_ranks(kBackend, 2, [&](const Group& group) {
      HookedModel model(Net(), small_buckets(group));
      int calls = 0;
      const Share share = share_of_batch(0, group->rank(), 2, 2);
      const auto output = model(share.input);
      output.register_hook([&](const at::Tensor& gradient) {
        if (!removes) set_hooks(model.parameters(), calls);
        for (const at::Tensor& parameter : model.parameters())
          if (removes)
            torch::autograd::impl::set_post_acc_grad_hooks(parameter, nullptr);
        return gradient;
      });
      EXPECT_THAT(message_of([&] { loss_of(output, share.target).backward(); }),
                  HasSubstr("other code has replaced the hook"));
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

TEST(GradientHooks, NameTheGradientsThatTheyMissed) {
  run_ranks(kBackend, 2, [](const Group& group) {
    DistributedDataParallel model(std::make_shared<NetOfAStruct>(),
                                  small_buckets(group));
    const Share share = share_of_batch(0, group->rank(), 2, 2);
    int calls = 0;
    const auto first = model(share.input);
    set_hooks({model->third->bias}, calls);
    EXPECT_THAT(
        message_of([&] { loss_of(first.value, share.target).backward(); }),
        HasSubstr("has replaced the hook on parameter third.bias"));
  });
  // Then no hook is left that could tell of the pass.
  run_ranks(kBackend, 2, [](const Group& group) {
    DistributedDataParallel model(std::make_shared<NetOfAStruct>(),
                                  small_buckets(group));
    const Share share = share_of_batch(0, group->rank(), 2, 2);
    int calls = 0;
    const auto first = model(share.input);
    set_hooks(model.parameters(), calls);
    loss_of(first.value, share.target).backward();
    EXPECT_THAT(message_of([&] { model(share.input); }),
                HasSubstr("has replaced the hook on parameter first.weight"));
    model.zero_grad();
    loss_of(model(share.input).value, share.target).backward();
    EXPECT_LE(
        largest_difference(gradients_of(*model), gradients_of_one_process(2)),
        kTolerance);
  });
}

TEST(GradientHooks, OfHorovodsOptimizerGoOnToo) {
  for (const bool all : {true, false})
    run_ranks(kBackend, 2, [&](const Group& group) {
      Net net;
      DistributedOptimizer optimizer(torch::optim::SGD(net.parameters(), 0.1),
                                     net.named_parameters(), {.group = group});
      int calls = 0;
      set_hooks(all ? net.parameters() : std::vector{net.first->weight}, calls);
      for (int step = 0; step < 2; ++step) {
        optimizer.zero_grad();
        backward(net, *group, step);
        optimizer.synchronize();
        EXPECT_LE(largest_difference(gradients_of(net),
                                     gradients_of_one_process(2, step)),
                  kTolerance);
      }
    });
}

TEST(GradientHooks, OfHorovodsOptimizerNameTheGradientThatTheyMissed) {
  run_ranks(kBackend, 2, [](const Group& group) {
    Net net;
    DistributedOptimizer optimizer(torch::optim::SGD(net.parameters(), 0.1),
                                   net.named_parameters(), {.group = group});
    int calls = 0;
    set_hooks({net.third->bias}, calls);  // whose gradient comes first
    EXPECT_THAT(message_of([&] { backward(net, *group); }),
                HasSubstr("has replaced the hook on parameter third.bias"));
  });
}

}  // namespace
}  // namespace lockstep
