// Tests of factors and clippings of skipped steps.
#include "src/torch/gradient/gradient_factor.h"

#include <gtest/gtest.h>

#include "lockstep/torch/distributed_data_parallel.h"
#include "lockstep/torch/gradient_scaler.h"
#include "lockstep/torch/horovod.h"
#include "lockstep/torch/optimizers.h"
#include "lockstep/torch/zero_redundancy_optimizer.h"
#include "src/comm/testing/run_ranks.h"
#include "src/torch/testing/small_nets.h"

namespace lockstep {
namespace {

using torch::optim::Optimizer;
using torch::optim::SGDOptions;

struct Weights : torch::nn::Module {
  explicit Weights(std::int64_t count = 4) {
    w = register_parameter("w", torch::zeros({count}));
  }
  at::Tensor forward() { return w.sum(); }
  at::Tensor w;
};

double value_of(const at::Tensor& weight) { return weight[0].item<double>(); }

TEST(GradientFactor, IsForgottenWithTheGradientsOfAStepThatIsLeftOut) {
  for (const bool to_none : {true, false}) {
    const at::Tensor weight = torch::zeros({4}).requires_grad_();
    FusedSGD optimizer({weight}, SGDOptions(1));
    weight.sum().backward();
    optimizer.scale_gradients(0.5);
    optimizer.clip_grad_norm(0.001);
    static_cast<Optimizer&>(optimizer).zero_grad(to_none);
    weight.sum().backward();
    optimizer.scale_gradients(0.5);
    optimizer.step();
    EXPECT_EQ(value_of(weight), -0.5) << to_none;
    static_cast<Optimizer&>(optimizer).zero_grad(to_none);
    weight.sum().backward();
    optimizer.clip_grad_norm(0.001);
    static_cast<Optimizer&>(optimizer).zero_grad(to_none);
    weight.sum().backward();
    optimizer.step();
    EXPECT_EQ(value_of(weight), -1.5) << to_none;
  }
}

// The wrapper gives each pass's gradients the same tensors.
TEST(GradientFactor, IsForgottenUnderDistributedDataParallel) {
  run_ranks(kBackend, 2, [](const Group& group) {
    for (const std::int64_t count : {4, 65536})
      for (const bool to_none : {true, false}) {
        auto model = DistributedDataParallel(Weights(count), {.group = group});
        FusedSGD optimizer(model.parameters(), SGDOptions(1));
        for (int pass = 0; pass < 4; ++pass) {
          static_cast<Optimizer&>(optimizer).zero_grad(to_none);
          model.forward().backward();
          optimizer.scale_gradients(0.5);
        }
        optimizer.step();
        EXPECT_EQ(value_of(model->w), -0.5) << count << ' ' << to_none;
      }
  });
}

TEST(GradientFactor, IsForgottenByAShardedOptimizerToo) {
  run_ranks(kBackend, 2, [](const Group& group) {
    for (const bool averages : {true, false}) {
      auto model = DistributedDataParallel(
          Weights(), {.group = group, .average_gradients = !averages});
      ZeroRedundancyOptimizer optimizer(
          model.parameters(), SGDOptions(1),
          {.group = group, .averages_gradients = averages});
      for (int pass = 0; pass < 3; ++pass) {
        static_cast<Optimizer&>(optimizer).zero_grad();
        model.forward().backward();
        optimizer.scale_gradients(0.5);
        EXPECT_DOUBLE_EQ(optimizer.clip_grad_norm(100), 1);
      }
      optimizer.step();
      EXPECT_EQ(value_of(model->w), -0.5) << averages;
    }
  });
}

TEST(GradientFactor, GivenBeforeThePassIsOfThatPass) {
  const at::Tensor weight = torch::zeros({4}).requires_grad_();
  FusedSGD optimizer({weight}, SGDOptions(1));
  optimizer.scale_gradients(0.5);
  weight.sum().backward();
  optimizer.step();
  EXPECT_EQ(value_of(weight), -0.5);
}

// A step after too few passes reduces gradients at its beginning.
TEST(GradientFactor, IsOfTheAverageWhereAStepReducesFirst) {
  run_ranks(kBackend, 2, [](const Group& group) {
    for (const bool scaler : {true, false}) {
      const Weights net;
      horovod::DistributedOptimizer optimizer(
          FusedSGD(net.parameters(), SGDOptions(1)), net.named_parameters(),
          {.group = group, .backward_passes_per_step = 2});
      ((group->rank() + 1) * 4 * net.w.sum()).backward();
      if (scaler)
        GradientScaler({.group = group, .init_scale = 4}).step(optimizer);
      else {
        optimizer.scale_gradients(0.25);
        optimizer.step();
      }
      EXPECT_EQ(value_of(net.w), -1.5) << scaler;
    }
  });
}

// Otherwise each rank would clip by its own norm, and replicas would diverge.
TEST(GradientFactor, ClipsTheAverageWhereAStepWouldReduceFirst) {
  run_ranks(kBackend, 2, [](const Group& group) {
    const Weights net;
    horovod::DistributedOptimizer optimizer(
        FusedSGD(net.parameters(), SGDOptions(1)), net.named_parameters(),
        {.group = group, .backward_passes_per_step = 2});
    ((group->rank() + 1) * 4 * net.w.sum()).backward();
    optimizer.scale_gradients(0.25);
    EXPECT_DOUBLE_EQ(optimizer.clip_grad_norm(1), 3);
    EXPECT_DOUBLE_EQ(optimizer.clip_grad_norm(1.5), 3);
    optimizer.step();
    EXPECT_NEAR(value_of(net.w), -0.75, kTolerance);
  });
}

}  // namespace
}  // namespace lockstep
