#include "lockstep/torch/gradient_scaler.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>
#include <torch/serialize.h>

#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "lockstep/torch/distributed_data_parallel.h"
#include "lockstep/torch/optimizers.h"
#include "lockstep/torch/zero_redundancy_optimizer.h"
#include "src/base/testing/error_text.h"
#include "src/comm/testing/run_ranks.h"
#include "src/torch/testing/formula_parameters.h"

namespace lockstep {
namespace {

using testing::HasSubstr;
using torch::optim::SGD;
using torch::optim::SGDOptions;

constexpr double kInfiniteGradient = std::numeric_limits<double>::infinity();

void alone(const std::function<void(const Group&)>& body) {
  run_ranks(kBackend, 1, body);
}

// A parameter of one element whose .grad is `gradient`.
at::Tensor parameter_with(double gradient) {
  at::Tensor parameter = at::ones({1}).requires_grad_(true);
  parameter.mutable_grad() = at::ones({1}) * gradient;
  return parameter;
}

std::unique_ptr<torch::optim::Optimizer> fused_or_sharded(
    const at::Tensor& parameter, bool sharded, const Group& group) {
  const std::vector<at::Tensor> parameters{parameter};
  if (!sharded) return std::make_unique<FusedSGD>(parameters, SGDOptions(0.5));
  return std::make_unique<ZeroRedundancyOptimizer>(
      parameters, SGDOptions(0.5),
      ZeroRedundancyOptimizerOptions{.group = group});
}

TEST(GradientScaler, GivesTheOptimizerTheGradientsOfTheUnscaledLoss) {
  for (const int ranks : {1, 2, 3})
    run_ranks(kBackend, ranks, [&](const Group& group) {
      auto reference = DistributedDataParallel(Net(), small_buckets(group));
      backward(reference, *group);
      SGD(reference.parameters(), 0.1).step();

      auto model = DistributedDataParallel(Net(), small_buckets(group));
      SGD optimizer(model.parameters(), 0.1);
      GradientScaler scaler({.group = group, .init_scale = 4096});
      const Share share =
          share_of_batch(0, group->rank(), group->size(), group->size());
      scaler.scale(loss_of(model(share.input), share.target)).backward();
      EXPECT_TRUE(scaler.step(optimizer));
      scaler.update();
      EXPECT_LT(largest_difference(model.parameters(), reference.parameters()),
                kTolerance);
    });
}

TEST(GradientScaler, LeavesAStepOutOnAllRanksWhenOneOverflows) {
  for (const double bad : {kInfiniteGradient, -kInfiniteGradient, std::nan("")})
    run_ranks(kBackend, 3, [&](const Group& group) {
      auto model = DistributedDataParallel(
          Net(), {.group = group, .average_gradients = false});
      ZeroRedundancyOptimizer optimizer(
          model.parameters(), SGDOptions(0.1),
          {.group = group, .averages_gradients = true});
      GradientScaler scaler({.group = group, .init_scale = 8});
      const auto before = copies_of(model.parameters());
      backward(model, *group);
      if (group->rank() == 1)
        model.parameters().front().mutable_grad().view(-1)[5] = bad;
      EXPECT_FALSE(scaler.step(optimizer)) << group->rank();
      scaler.update();
      EXPECT_TRUE(are_equal(before, model.parameters()));
      EXPECT_EQ(scaler.get_scale(), 4);
      optimizer.zero_grad();
      backward(model, *group);
      EXPECT_TRUE(scaler.step(optimizer));
      scaler.update();
      EXPECT_FALSE(are_equal(before, model.parameters()));
    });
}

TEST(GradientScaler, GrowsAndBacksOffAsPyTorchs) {
  alone([](const Group& group) {
    const std::uint32_t seed = 17;
    std::mt19937 random(seed);
    GradientScaler scaler({.group = group,
                           .init_scale = 1024,
                           .growth_factor = 3,
                           .backoff_factor = 0.25,
                           .growth_interval = 3});
    at::Tensor scale = at::ones({1}) * 1024;
    at::Tensor tracker = at::zeros({1}, at::kInt);
    for (int step = 0; step < 200; ++step) {
      const bool overflows = random() % 8 == 0;
      SGD optimizer({parameter_with(overflows ? kInfiniteGradient : 1)}, 0.1);
      EXPECT_EQ(scaler.step(optimizer), !overflows);
      scaler.update();
      at::_amp_update_scale_(scale, tracker, at::ones({1}) * overflows, 3, 0.25,
                             3);
      ASSERT_EQ(scaler.get_scale(), scale.item<double>())
          << "step " << step << ", seed " << seed;
      ASSERT_EQ(scaler.state_dict().growth_tracker, tracker.item<int>());
    }
  });
}

TEST(GradientScaler, NeverGrowsBeyondFloat32) {
  alone([](const Group& group) {
    GradientScaler scaler(
        {.group = group, .init_scale = 2e38, .growth_interval = 1});
    SGD optimizer({parameter_with(1)}, 0.1);
    scaler.step(optimizer);
    scaler.update();
    EXPECT_EQ(scaler.get_scale(), static_cast<float>(2e38));
  });
}

TEST(GradientScaler, NeverFallsToWhereNothingCanBeDividedByIt) {
  alone([](const Group& group) {
    GradientScaler scaler({.group = group, .init_scale = 1e-37});
    for (int step = 0; step < 100; ++step) {
      SGD optimizer({parameter_with(kInfiniteGradient)}, 0.1);
      scaler.step(optimizer);
      scaler.update();
    }
    SGD optimizer({parameter_with(1)}, 0.1);
    EXPECT_TRUE(scaler.step(optimizer));
    EXPECT_TRUE(
        std::isfinite(optimizer.param_groups()[0].params()[0].item<double>()));
  });
}

// The update kernels divide as they read, so the step costs no additional pass.
TEST(GradientScaler, LeavesDivisionToOptimizersThatScaleGradients) {
  for (const bool sharded : {false, true})
    for (const double bad : {1.0, kInfiniteGradient, std::nan("")})
      alone([&](const Group& group) {
        const at::Tensor parameter = parameter_with(16 * bad);
        const auto optimizer = fused_or_sharded(parameter, sharded, group);
        GradientScaler scaler({.group = group, .init_scale = 16});
        EXPECT_EQ(scaler.step(*optimizer), bad == 1);
        EXPECT_FLOAT_EQ(parameter.item<float>(), bad == 1 ? 0.5 : 1);
        if (bad == 1) {
          EXPECT_EQ(parameter.grad().item<double>(), 16);
        }
        // The finding about a skipped step does not apply to the next.
        scaler.update();
        parameter.mutable_grad() = at::ones({1}) * scaler.get_scale();
        const double before = parameter.item<double>();
        EXPECT_TRUE(scaler.step(*optimizer));
        EXPECT_NEAR(before - parameter.item<double>(), 0.5, 1e-6);
      });
}

TEST(GradientScaler, UnscalesForTheirClippingToo) {
  for (const int ranks : {1, 2})
    run_ranks(kBackend, ranks, [](const Group& group) {
      const at::Tensor parameter = parameter_with(16 * 10);
      ZeroRedundancyOptimizer optimizer(
          {parameter}, SGDOptions(1),
          {.group = group, .averages_gradients = true});
      GradientScaler scaler({.group = group, .init_scale = 16});
      scaler.unscale_(optimizer);
      EXPECT_DOUBLE_EQ(optimizer.clip_grad_norm(4), 10);
      EXPECT_TRUE(scaler.step(optimizer));
      EXPECT_NEAR(parameter.item<double>(), 1 - 4, 1e-5);
    });
}

TEST(GradientScaler, ForgetsTheClippingOfAStepThatItLeavesOut) {
  for (const bool sharded : {false, true})
    alone([&](const Group& group) {
      const at::Tensor parameter = parameter_with(kInfiniteGradient);
      const auto optimizer = fused_or_sharded(parameter, sharded, group);
      GradientScaler scaler({.group = group, .init_scale = 1});
      scaler.unscale_(*optimizer);
      if (sharded)
        dynamic_cast<ZeroRedundancyOptimizer&>(*optimizer).clip_grad_norm(1);
      else
        dynamic_cast<FusedSGD&>(*optimizer).clip_grad_norm(1);
      EXPECT_FALSE(scaler.step(*optimizer));
      scaler.update();
      parameter.mutable_grad() = at::ones({1}) * scaler.get_scale();
      EXPECT_TRUE(scaler.step(*optimizer));
      EXPECT_FLOAT_EQ(parameter.item<float>(), 0.5);
    });
}

// Squares of float64 may overflow where the numbers do not.
TEST(GradientScaler, TakesLargeFloat64ForWhatItIs) {
  alone([](const Group& group) {
    const at::Tensor parameter =
        at::zeros({1}, at::kDouble).requires_grad_(true);
    parameter.mutable_grad() = at::full({1}, 1e200, at::kDouble);
    FusedSGD optimizer({parameter}, SGDOptions(1));
    GradientScaler scaler({.group = group, .init_scale = 4});
    EXPECT_TRUE(scaler.step(optimizer));
    EXPECT_DOUBLE_EQ(parameter.item<double>(), -0.25e200);
  });
}

TEST(GradientScaler, DividesWhatASparseGradientStores) {
  alone([](const Group& group) {
    const at::Tensor parameter = at::zeros({3}).requires_grad_(true);
    parameter.mutable_grad() = (at::ones({3}) * 8).to_sparse();
    SGD optimizer({parameter}, 1);
    GradientScaler scaler({.group = group, .init_scale = 4});
    EXPECT_TRUE(scaler.step(optimizer));
    EXPECT_EQ(parameter[1].item<double>(), -2);
  });
}

TEST(GradientScaler, ScalesAFloat16LossInFloat32) {
  alone([](const Group& group) {
    const GradientScaler scaler({.group = group});
    const at::Tensor scaled = scaler.scale(at::full({}, 3, at::kHalf));
    EXPECT_EQ(scaled.scalar_type(), at::kFloat);
    EXPECT_EQ(scaled.item<double>(), 3 * 65536);
    EXPECT_TRUE(
        scaler.scale(at::ones({4}, at::kHalf)).equal(at::full({4}, 65536.0F)));
  });
}

TEST(GradientScaler, DoesNothingWhenItIsNotEnabled) {
  alone([](const Group& group) {
    GradientScaler scaler({.group = group, .enabled = false});
    const at::Tensor parameter = parameter_with(kInfiniteGradient);
    SGD optimizer({parameter}, 1);
    const at::Tensor loss = at::ones({});
    EXPECT_TRUE(scaler.scale(loss).is_same(loss));
    scaler.unscale_(optimizer);
    EXPECT_TRUE(scaler.step(optimizer));
    scaler.update();
    EXPECT_EQ(parameter.item<double>(), -kInfiniteGradient);
    EXPECT_EQ(scaler.get_scale(), 1);
  });
}

TEST(GradientScaler, SaysOnEveryRankThatScalesDiffer) {
  run_ranks(kBackend, 2, [](const Group& group) {
    GradientScaler scaler({.group = group});
    if (group->rank() == 1) scaler.load_state_dict({.scale = 8});
    SGD optimizer({parameter_with(1)}, 0.1);
    const std::string own = group->rank() == 1 ? "(8 on rank 1" : "(65536 on";
    EXPECT_THAT(error_text([&] { scaler.step(optimizer); }),
                testing::AllOf(HasSubstr("different scales"), HasSubstr(own)));
  });
}

TEST(GradientScaler, UnscalesForClippingOnceAndTiedWeightsOnce) {
  alone([](const Group& group) {
    const at::Tensor tied = parameter_with(6 * 16);
    const at::Tensor other = parameter_with(8 * 16);
    SGD optimizer({tied, other, tied}, 1);
    GradientScaler scaler({.group = group, .init_scale = 16});
    scaler.unscale_(optimizer);
    EXPECT_DOUBLE_EQ(clip_grad_norm({tied, other}, 5), 10);
    EXPECT_TRUE(scaler.step(optimizer));
    EXPECT_NEAR(other.item<double>(), 1 - 4, 1e-5);
  });
}

TEST(GradientScaler, StepsEachOptimizerByItsOwnGradients) {
  alone([](const Group& group) {
    SGD good({parameter_with(1)}, 0.1),
        bad({parameter_with(kInfiniteGradient)}, 0.1);
    GradientScaler scaler({.group = group, .init_scale = 8});
    EXPECT_TRUE(scaler.step(good));
    EXPECT_FALSE(scaler.step(bad));
    scaler.update();
    EXPECT_EQ(scaler.get_scale(), 4);
  });
}

TEST(GradientScaler, GoesOnFromTheStateOfAnother) {
  alone([](const Group& group) {
    GradientScaler first({.group = group, .growth_interval = 2});
    SGD optimizer({parameter_with(1)}, 0.1);
    first.step(optimizer);
    first.update();
    GradientScaler second({.group = group, .growth_interval = 2});
    second.load_state_dict(first.state_dict());
    EXPECT_EQ(second.state_dict(), first.state_dict());
    second.step(optimizer);
    second.update();
    EXPECT_EQ(second.get_scale(), 2 * 65536);
    std::stringstream file;
    torch::save(second, file);
    GradientScaler third({.group = group});
    torch::load(third, file);
    EXPECT_EQ(third.state_dict(), second.state_dict());
    third.update(32);
    EXPECT_EQ(third.get_scale(), 32);
    EXPECT_THAT(error_text([&] { second.load_state_dict({.scale = 0}); }),
                HasSubstr("cannot have a scale of 0"));
  });
}

TEST(GradientScaler, RefusesCallsOutOfOrder) {
  alone([](const Group& group) {
    GradientScaler scaler({.group = group});
    SGD optimizer({parameter_with(1)}, 0.1);
    EXPECT_THAT(error_text([&] { scaler.update(); }),
                HasSubstr("without a step()"));
    scaler.unscale_(optimizer);
    EXPECT_THAT(error_text([&] { scaler.unscale_(optimizer); }),
                HasSubstr("twice for one step"));
    scaler.step(optimizer);
    EXPECT_THAT(error_text([&] { scaler.step(optimizer); }),
                HasSubstr("called twice for one update()"));
    EXPECT_THAT(error_text([&] { scaler.unscale_(optimizer); }),
                HasSubstr("after step()"));
    scaler.update();
    EXPECT_TRUE(scaler.step(optimizer));
  });
}

TEST(GradientScaler, RefusesFloat16GradientsOnEveryRank) {
  run_ranks(kBackend, 2, [](const Group& group) {
    at::Tensor parameter = at::ones({2}, at::kHalf);
    if (group->rank() == 0) parameter = parameter.to(at::kFloat);
    parameter.requires_grad_(true);
    parameter.mutable_grad() = at::ones_like(parameter);
    SGD optimizer({parameter}, 0.1);
    GradientScaler scaler({.group = group});
    EXPECT_THAT(error_text([&] { scaler.step(optimizer); }),
                HasSubstr("it is float16 itself"));
  });
}

TEST(GradientScaler, RefusesOptionsThatCannotWork) {
  alone([](const Group& group) {
    const auto refusal = [&](GradientScalerOptions options) {
      options.group = group;
      return error_text([&] { GradientScaler scaler(options); });
    };
    EXPECT_THAT(refusal({.init_scale = 0}), HasSubstr("init_scale"));
    EXPECT_THAT(refusal({.init_scale = kInfiniteGradient}),
                HasSubstr("init_scale"));
    EXPECT_THAT(refusal({.growth_factor = 1}), HasSubstr("growth_factor"));
    EXPECT_THAT(refusal({.backoff_factor = 1}), HasSubstr("backoff_factor"));
    EXPECT_THAT(refusal({.growth_interval = 0}), HasSubstr("growth_interval"));
  });
}

// LibTorch's sparse gradient is a view of the gradient of the embedding's
// output: two tables whose outputs are added share it.
TEST(GradientScaler, DividesOnceWhatTwoSparseGradientsShare) {
  run_ranks(kBackend, 1, [](const Group& group) {
    const auto options = torch::nn::EmbeddingOptions(4, 2).sparse(true);
    torch::nn::Embedding words(options), places(options);
    torch::optim::SGD optimizer({words->weight, places->weight},
                                torch::optim::SGDOptions(1));
    const at::Tensor before = words->weight.detach().clone();
    GradientScaler scaler({.group = group, .init_scale = 1024});
    const at::Tensor some = torch::tensor({1, 3});
    scaler.scale((words(some) + places(some)).sum()).backward();
    scaler.step(optimizer);
    for (const int row : {1, 3})
      EXPECT_NEAR((before - words->weight)[row][0].item<float>(), 1, 1e-5);
  });
}

}  // namespace
}  // namespace lockstep
