#include "src/torch/tensor/module_tensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/cloneable.h>
#include <torch/optim/adamw.h>
#include <torch/serialize.h>

#include <cstdlib>
#include <memory>
#include <sstream>
#include <string>

#include "lockstep/torch/data_parallel.h"
#include "lockstep/torch/distributed_data_parallel.h"
#include "lockstep/torch/horovod.h"
#include "lockstep/torch/optimizers.h"
#include "lockstep/torch/strategies.h"
#include "lockstep/torch/zero_redundancy_optimizer.h"
#include "src/comm/testing/run_ranks.h"
#include "src/torch/testing/formula_parameters.h"
#include "src/torch/testing/small_nets.h"

namespace lockstep {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using torch::optim::AdamWOptions;

constexpr int kTiedSteps = 20;

// The second layer has the first one's weight, under its own name.
struct TiedNet : torch::nn::Cloneable<TiedNet> {
  TiedNet() { reset(); }
  void reset() override {
    first = register_module("first", torch::nn::Linear(6, 6));
    fill(*this, 0);
    tied = register_parameter("tied", first->weight);
  }
  at::Tensor forward(const at::Tensor& input) {
    return torch::nn::functional::linear(torch::tanh(first(input)), tied)
        .narrow(1, 0, 3);
  }
  torch::nn::Linear first{nullptr};
  at::Tensor tied;
};

AdamWOptions tied_rule() { return AdamWOptions(0.05).weight_decay(0.1); }

// The result of one process with the whole batch, each parameter once.
std::vector<at::Tensor> expected(int shares) {
  TiedNet net;
  torch::optim::AdamW optimizer({net.first->weight, net.first->bias},
                                tied_rule());
  train(
      net, optimizer,
      [&](int step) { return share_of_batch(step, 0, 1, shares); }, kTiedSteps);
  return copies_of({net.first->weight, net.first->bias});
}

template <class Model>
void train_as_rank(Model& model, torch::optim::Optimizer& optimizer,
                   const ProcessGroup& group) {
  train(
      model, optimizer,
      [&](int step) {
        return share_of_batch(step, group.rank(), group.size(), group.size());
      },
      kTiedSteps);
}

void expect_learned(const TiedNet& net, int shares) {
  EXPECT_LE(largest_difference({net.first->weight, net.first->bias},
                               expected(shares)),
            1e-4);
}

TEST(TiedWeights, CountOnceUnderTheirFirstName) {
  const TiedNet net;
  EXPECT_EQ(net.parameters().size(), 3);
  EXPECT_EQ(distinct_parameters(net).size(), 2);
  EXPECT_THAT(distinct_named_parameters(net).keys(),
              ElementsAre("tied", "first.bias"));
}

// In a new process, which has not logged the line yet.
TEST(TiedWeightsDeathTest, AreNamedOnceInTheLog) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto lines = [] {
    const TiedNet net;
    testing::internal::CaptureStderr();
    distinct_parameters(net);
    distinct_parameters(net);
    FusedAdamW(net.parameters(), tied_rule());
    const std::string log = testing::internal::GetCapturedStderr();
    EXPECT_THAT(log, HasSubstr("first.weight is tied by another name"));
    const std::size_t first = log.find("it counts once");
    return first == log.rfind("it counts once") && first < log.size() ? 1 : 0;
  };
  EXPECT_EXIT(std::_Exit(lines()), testing::ExitedWithCode(1), "");
}

TEST(TiedWeights, LearnWithEveryOptimizerOfAWrappersParameters) {
  run_ranks(kBackend, 2, [](const Group& group) {
    {
      auto model = DistributedDataParallel(TiedNet(), {.group = group});
      EXPECT_EQ(model.parameters().size(), 2);
      EXPECT_EQ(model.named_parameters().size(), 2);
      torch::optim::AdamW optimizer(model.parameters(), tied_rule());
      train_as_rank(model, optimizer, *group);
      expect_learned(*model, 2);
    }
    {
      auto model = DistributedDataParallel(TiedNet(), {.group = group});
      FusedAdamW optimizer(model->parameters(), tied_rule());  // the module's
      train_as_rank(model, optimizer, *group);
      expect_learned(*model, 2);
    }
    {
      auto model = DistributedDataParallel(TiedNet(), {.group = group});
      ZeroRedundancyOptimizer optimizer(model->parameters(), tied_rule(),
                                        {.group = group});
      train_as_rank(model, optimizer, *group);
      expect_learned(*model, 2);
    }
  });
}

TEST(TiedWeights, LearnUnderHorovodsOptimizerOfTheModulesParameters) {
  run_ranks(kBackend, 2, [](const Group& group) {
    TiedNet net;
    auto optimizer = horovod::DistributedOptimizer(
        torch::optim::AdamW(net.parameters(), tied_rule()),
        net.named_parameters(), {.group = group});
    EXPECT_EQ(optimizer.param_groups()[0].params().size(), 2);
    train_as_rank(net, optimizer, *group);
    expect_learned(net, 2);
  });
}

// LibTorch's own optimizer loses it at the second place.
TEST(TiedWeights, HaveStateThatIsSavedAndLoaded) {
  run_ranks(kBackend, 1, [](const Group& group) {
    for (const bool sharded : {false, true}) {
      const auto optimizer_of =
          [&](const TiedNet& net) -> std::unique_ptr<torch::optim::Optimizer> {
        if (!sharded)
          return std::make_unique<FusedAdamW>(net.parameters(), tied_rule());
        return std::make_unique<ZeroRedundancyOptimizer>(
            net.parameters(), tied_rule(),
            ZeroRedundancyOptimizerOptions{.group = group});
      };
      TiedNet net;
      auto optimizer = optimizer_of(net);
      for (int part = 0; part < 2; ++part) {
        train(
            net, *optimizer,
            [&](int step) {
              return share_of_batch(step + part * kTiedSteps / 2, 0, 1, 1);
            },
            kTiedSteps / 2);
        if (auto* sharding =
                dynamic_cast<ZeroRedundancyOptimizer*>(optimizer.get()))
          sharding->consolidate_state_dict();
        std::stringstream file;
        torch::save(*optimizer, file);
        optimizer = optimizer_of(net);
        torch::load(*optimizer, file);
      }
      expect_learned(net, 1);
    }
  });
}

TEST(TiedWeights, LearnUnderDataParallelAndStrategies) {
  data_parallel::DataParallel<TiedNet> model(
      std::make_shared<TiedNet>(),
      {.devices = {at::kCPU, at::kCPU},
       .factory = [] { return std::make_shared<TiedNet>(); }});
  torch::optim::AdamW optimizer(model.parameters(), tied_rule());
  train(
      model, optimizer, [](int step) { return share_of_batch(step, 0, 1, 2); },
      kTiedSteps);
  expect_learned(*model, 2);

  strategies::CentralStorageStrategy strategy(
      {.devices = {at::kCPU, at::kCPU}});
  auto net = strategy.create([] { return std::make_shared<TiedNet>(); });
  auto steps = strategy.create_optimizer(net, [](auto parameters) {
    return torch::optim::AdamW(parameters, tied_rule());
  });
  for (int step = 0; step < kTiedSteps; ++step)
    strategy.run([&](const strategies::ReplicaContext& here) {
      const Share share =
          share_of_batch(step, here.replica_id_in_sync_group(), 2, 2);
      steps[here].zero_grad();
      (loss_of(net[here](share.input), share.target) / 2).backward();
      steps[here].step();
    });
  expect_learned(*net.local(0), 2);
}

}  // namespace
}  // namespace lockstep
