#include "lockstep/torch/elastic.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <vector>

#include "lockstep/torch/zero_redundancy_optimizer.h"
#include "src/base/testing/error_text.h"

namespace lockstep::elastic {
namespace {

using testing::HasSubstr;

// A program that was started alone: a world of one rank.
class ElasticState : public testing::Test {
 protected:
  void TearDown() override { destroy_process_group(); }

  void take_step() {
    optimizer_.zero_grad();
    net_->forward(torch::ones({4, 3})).square().sum().backward();
    optimizer_.step();
    losses_ += 1;
    ++step_;
  }

  std::vector<at::Tensor> contents() const {
    std::vector<at::Tensor> all = net_->parameters();
    for (const at::Tensor& buffer : net_->buffers()) all.push_back(buffer);
    all.push_back(losses_);
    for (at::Tensor& tensor : all) tensor = tensor.detach().clone();
    return all;
  }

  static bool equal(const std::vector<at::Tensor>& one,
                    const std::vector<at::Tensor>& other) {
    return std::ranges::equal(
        one, other, [](const auto& a, const auto& b) { return a.equal(b); });
  }

  torch::nn::Sequential net_{torch::nn::Linear(3, 3),
                             torch::nn::BatchNorm1d(3)};
  torch::optim::SGD optimizer_{net_->parameters(),
                               torch::optim::SGDOptions(0.1).momentum(0.9)};
  at::Tensor losses_ = torch::zeros({2});
  std::int64_t step_ = 0;
  const StateContents all_{.model = net_.ptr(),
                           .optimizer = &optimizer_,
                           .counters = {{"step", &step_}},
                           .tensors = {{"losses", losses_}}};
};

TEST_F(ElasticState, ReturnsToTheLastCommit) {
  State state(all_);
  take_step();
  state.commit();
  const auto committed = contents();
  take_step();
  const auto next = contents();
  EXPECT_FALSE(equal(contents(), committed));
  state.restore();
  EXPECT_TRUE(equal(contents(), committed));
  EXPECT_EQ(step_, 1);
  for (const at::Tensor& parameter : net_->parameters())
    EXPECT_FALSE(parameter.grad().defined());
  // The optimizer's momentum is that of the commit, too.
  take_step();
  EXPECT_TRUE(equal(contents(), next));
}

TEST_F(ElasticState, ReturnsToTheBeginningBeforeTheFirstCommit) {
  State state(all_);
  const auto initial = contents();
  take_step();
  state.restore();
  EXPECT_TRUE(equal(contents(), initial));
  EXPECT_EQ(step_, 0);
}

TEST_F(ElasticState, KeepsTheTensorsThatTheProgramHolds) {
  State state(all_);
  const void* const before = net_->parameters()[0].const_data_ptr();
  take_step();
  state.restore();
  EXPECT_EQ(net_->parameters()[0].const_data_ptr(), before);
}

TEST_F(ElasticState, KeepsTheTypeAndTheSizeOfEachCommit) {
  at::Tensor history = torch::arange(3, torch::kDouble) / 3;
  State state({.model = net_.ptr(), .tensors = {{"history", history}}});
  net_->to(torch::kDouble);
  {
    const torch::NoGradGuard no_grad;
    for (at::Tensor& parameter : net_->parameters()) parameter.div_(3);
  }
  history.set_data(torch::arange(7, torch::kDouble) / 7);
  state.commit();
  const at::Tensor weight = net_->parameters()[0].detach().clone();
  {
    const torch::NoGradGuard no_grad;
    for (at::Tensor& parameter : net_->parameters()) parameter.zero_();
  }
  history.set_data(torch::zeros({1}));
  state.restore();
  EXPECT_TRUE(torch::equal(net_->parameters()[0], weight));
  EXPECT_TRUE(torch::equal(history, torch::arange(7, torch::kDouble) / 7));
}

TEST_F(ElasticState, NamesAnUndefinedTensor) {
  EXPECT_THAT(error_text([&] {
                State({.tensors = {{"sum", at::Tensor()}}});
              }),
              HasSubstr("sum is an undefined tensor"));
}

TEST_F(ElasticState, SaysWhenTheOptimizersGroupsHaveChanged) {
  State state(all_);
  optimizer_.add_param_group(
      torch::optim::OptimizerParamGroup({torch::zeros({2})}));
  EXPECT_THAT(error_text([&] { state.restore(); }),
              HasSubstr("add all groups before the program makes the State"));
}

TEST_F(ElasticState, RefusesAShardedOptimizer) {
  init_process_group();
  ZeroRedundancyOptimizer sharded(net_->parameters(),
                                  torch::optim::SGDOptions(0.1));
  EXPECT_THAT(
      error_text([&] { State({.model = net_.ptr(), .optimizer = &sharded}); }),
      HasSubstr("the share of a rank that dies is lost"));
}

TEST_F(ElasticState, TrainsOnceInAProgramThatWasStartedAlone) {
  State state(all_);
  int calls = 0;
  run(state, [&](State& same) {
    EXPECT_EQ(&same, &state);
    EXPECT_TRUE(is_initialized());
    ++calls;
    take_step();
    same.commit();
  });
  EXPECT_EQ(calls, 1);
}

TEST_F(ElasticState, PassesOnErrorsWhereNoGroupCanFollow) {
  State state(all_);
  int calls = 0;
  EXPECT_THROW(run(state,
                   [&](State&) {
                     ++calls;
                     throw PeerFailure(1, "rank 1 is gone");
                   }),
               PeerFailure);
  EXPECT_EQ(calls, 1);
}

}  // namespace
}  // namespace lockstep::elastic
