#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <cmath>

#include "lockstep/base/error.h"
#include "lockstep/torch/optimizers.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

torch::optim::SGD optimizer_of(double rate) {
  return torch::optim::SGD({torch::zeros({2})}, rate);
}

double rate_of(torch::optim::Optimizer& optimizer, std::size_t group = 0) {
  return optimizer.param_groups()[group].options().get_lr();
}

// golden.cosine compares its rates with PyTorch's.
TEST(CosineAnnealingLR, TakesEachGroupFromItsOwnRate) {
  std::vector<torch::optim::OptimizerParamGroup> groups;
  for (const double rate : {0.5, 0.02})
    groups.emplace_back(std::vector<at::Tensor>{torch::zeros({1})},
                        std::make_unique<torch::optim::AdamOptions>(rate));
  torch::optim::Adam optimizer(groups, {});
  CosineAnnealingLR schedule(optimizer, {.t_max = 4});
  schedule.step();
  schedule.step();
  EXPECT_NEAR(rate_of(optimizer, 0), 0.25, 1e-12);
  EXPECT_NEAR(rate_of(optimizer, 1), 0.01, 1e-12);
}

TEST(CosineAnnealingLR, GoesOnWhereARunWasInterrupted) {
  for (const int warmup : {0, 2, 5}) {
    auto whole = optimizer_of(0.3), second = optimizer_of(0.3);
    CosineAnnealingLR in_one(whole, {.t_max = 7, .warmup = warmup});
    for (int i = 0; i < 3; ++i) in_one.step();
    CosineAnnealingLR resumed(second,
                              {.t_max = 7, .last_epoch = 3, .warmup = warmup});
    for (int i = 3; i < 12; ++i) {
      EXPECT_EQ(rate_of(second), rate_of(whole)) << warmup;
      EXPECT_EQ(resumed.last_epoch(), in_one.last_epoch());
      in_one.step();
      resumed.step();
    }
  }
}

// PyTorch's goes on from the changed rate.
TEST(CosineAnnealingLR, ReplacesARateThatTheProgramHasSet) {
  auto changed = optimizer_of(0.3), other = optimizer_of(0.3);
  CosineAnnealingLR one(changed, {.t_max = 7}), two(other, {.t_max = 7});
  one.step();
  two.step();
  changed.param_groups()[0].options().set_lr(0.001);
  one.step();
  two.step();
  EXPECT_EQ(rate_of(changed), rate_of(other));
}

TEST(CosineAnnealingLR, RefusesWhatIsNoSchedule) {
  auto optimizer = optimizer_of(0.3);
  for (const CosineAnnealingOptions& wrong :
       {CosineAnnealingOptions{.t_max = 0},
        CosineAnnealingOptions{.eta_min = std::nan("")},
        CosineAnnealingOptions{.last_epoch = -1},
        CosineAnnealingOptions{.warmup = -1},
        CosineAnnealingOptions{.start_factor = 1.5}})
    try {
      CosineAnnealingLR(optimizer, wrong);
      ADD_FAILURE() << "it was taken";
    } catch (const InvalidArgument& error) {
      EXPECT_THAT(error.what(), HasSubstr("use a t_max of at least 1"));
    }
}

}  // namespace
}  // namespace lockstep
