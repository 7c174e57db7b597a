// Tests that the comparison of replicas, the net below every check of
// data-parallel training, finds what three of these checks would have found
// first. Here the library lacks the three: each case first shows that replicas
// then drift apart without an error.
//
// Source: pytorch #63916 (buffers), #76464 (hooks).
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include "src/comm/operation/operation.h"
#include "src/comm/testing/run_ranks.h"
#include "src/torch/testing/small_nets.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int kSteps = 6;

// The wrapper's options: with a comparison in every third pass, or with none.
DistributedDataParallelOptions comparing(const Group& group, bool compares) {
  return {.group = group,
          .find_unused_parameters = true,
          .compare_replicas_every = compares ? 3 : 0};
}

// What `train(group, compares)` throws on each of two ranks; it returns a
// tensor that the ranks should have in common.
template <class Train>
void expect_found(const Train& train, const std::string& where) {
  std::vector<at::Tensor> left(2);
  run_ranks(kBackend, 2, [&](const Group& group) {
    left[index_of(group->rank())] = train(group, false);
  });
  EXPECT_GT(largest_difference({left[0]}, {left[1]}), 0.001);
  run_ranks(kBackend, 2, [&](const Group& group) {
    EXPECT_THAT(message_of([&] { train(group, true); }),
                AllOf(HasSubstr("the replicas of group"), HasSubstr(where)));
  });
}

// A running mean that exists from the first forward pass on.
struct NetWithALateBuffer : Net {
  at::Tensor forward(const at::Tensor& input) {
    if (!mean.defined()) mean = register_buffer("mean", torch::zeros({6}));
    mean.mul_(0.9).add_(input.detach().mean(0), 0.1);
    return Net::forward(input - mean);
  }
  at::Tensor mean;
};

TEST(WithoutChecks, ABufferThatIsRegisteredAfterWrappingIsFound) {
  expect_found(
      [](const Group& group, bool compares) {
        auto model = DistributedDataParallel(NetWithALateBuffer(),
                                             comparing(group, compares));
        for (int step = 0; step < kSteps; ++step) backward(model, *group, step);
        model.broadcast_buffers();
        return model->mean.clone();
      },
      "buffer mean[0] is");
}

struct HookThatDoesNothing : torch::autograd::PostAccumulateGradHook {
  void operator()(const at::Tensor& /*parameter*/) override {}
};

TEST(WithoutChecks, GradientsWhoseHooksOtherCodeHasReplacedAreFound) {
  expect_found(
      [](const Group& group, bool compares) {
        auto model = DistributedDataParallel(Net(), comparing(group, compares));
        torch::optim::SGD optimizer(model.parameters(), 0.1);
        // Some hook stays, or no pass is known to be one.
        for (const at::Tensor& parameter : model->first->parameters())
          torch::autograd::impl::set_post_acc_grad_hooks(
              parameter, std::make_unique<HookThatDoesNothing>());
        for (int step = 0; step < kSteps; ++step) {
          optimizer.zero_grad();
          backward(model, *group, step);
          optimizer.step();
        }
        return model->first->weight.detach().clone();
      },
      "first.weight[0, 0] is");
}

TEST(WithoutChecks, GradientsThatOtherCodeHasMovedAreFound) {
  expect_found(
      [](const Group& group, bool compares) {
        auto model = DistributedDataParallel(Net(), comparing(group, compares));
        torch::optim::SGD optimizer(model.parameters(), 0.1);
        for (int step = 0; step < kSteps; ++step) {
          optimizer.zero_grad(/*set_to_none=*/false);
          backward(model, *group, step);
          for (const at::Tensor& parameter : model.parameters())
            parameter.mutable_grad().set_data(parameter.grad().clamp(-1, 1));
          optimizer.step();
        }
        return model->first->weight.detach().clone();
      },
      "first.weight[0, 0] is");
}

}  // namespace
}  // namespace lockstep
