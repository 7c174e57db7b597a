// Tests of the strategies on fake GPUs: see src/torch/testing/fake_cuda.h.
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <stdexcept>
#include <vector>

#include "lockstep/torch/strategies.h"
#include "lockstep/torch/sync_batch_norm.h"
#include "src/torch/testing/cuda_ranks.h"
#include "src/torch/testing/numbered_samples.h"
#include "src/torch/testing/small_nets.h"

namespace lockstep::strategies {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Tensors = std::vector<at::Tensor>;

constexpr int kStrategySteps = 4;
constexpr double kFewSteps = 1e-5;

StrategyOptions on_gpus(int count, int first = 0) {
  StrategyOptions options;
  for (int i = 0; i < count; ++i)
    options.devices.emplace_back(at::kCUDA,
                                 static_cast<at::DeviceIndex>(first + i));
  return options;
}

torch::optim::SGDOptions rule() {
  return torch::optim::SGDOptions(0.1).momentum(0.9);
}

template <class Module = Net>
Tensors weights_of_one_process(int shares) {
  Module net;
  torch::optim::SGD optimizer(net.parameters(), rule());
  train(
      net, optimizer,
      [&](int step) { return share_of_batch(step, 0, 1, shares); },
      kStrategySteps);
  return net.parameters();
}

Share share_of(const ReplicaContext& here, int step) {
  const int replicas = here.num_replicas_in_sync();
  const Share share =
      share_of_batch(step, here.replica_id_in_sync_group(), replicas, replicas);
  return {share.input.to(here.device), share.target.to(here.device)};
}

// A pass and a step of each replica; returns the losses.
template <class Model>
PerReplica<at::Tensor> train_step(
    Strategy& strategy, const PerReplica<Model>& net,
    const PerReplica<StrategyOptimizer>& optimizer, int step) {
  return strategy.run([&](const ReplicaContext& here) {
    const Share share = share_of(here, step);
    optimizer[here].zero_grad();
    const at::Tensor loss = strategy.compute_average_loss(
        torch::square(net[here](share.input) - share.target).mean(1));
    loss.backward();
    optimizer[here].step();
    return loss.detach();
  });
}

template <class Model>
PerReplica<StrategyOptimizer> optimizer_of(Strategy& strategy,
                                           const PerReplica<Model>& net) {
  return strategy.create_optimizer(net, [](auto parameters) {
    return torch::optim::SGD(parameters, rule());
  });
}

// Weights of the first replica after some steps; all replicas must have the
// same.
template <class Model>
Tensors trained(Strategy& strategy, const PerReplica<Model>& net) {
  const auto optimizer = optimizer_of(strategy, net);
  for (int step = 0; step < kStrategySteps; ++step)
    train_step(strategy, net, optimizer, step);
  const Tensors weights = on_cpu(net.local().parameters());
  for (std::size_t i = 1; i < net.size(); ++i)
    EXPECT_EQ(largest_difference(
                  on_cpu(net.local(static_cast<int>(i)).parameters()), weights),
              0);
  return weights;
}

struct NormalizedNet : torch::nn::Module {
  NormalizedNet() {
    layer = register_module("layer", torch::nn::Linear(6, 3));
    norm = register_module("norm", BatchNorm(torch::nn::BatchNormOptions(3)));
    fill(*this, 0);
  }
  at::Tensor forward(const at::Tensor& input) { return norm(layer(input)); }
  torch::nn::Linear layer{nullptr};
  BatchNorm norm{nullptr};
};

using StrategiesOnCuda = CudaRanks;

TEST_F(StrategiesOnCuda, MirroredTrainsAsOneProcessOnTheGlobalBatch) {
  for (const int gpus : {1, 2, 3})
    run_process(gpus, [=](const Group&) {
      MirroredStrategy strategy(on_gpus(gpus));
      EXPECT_EQ(strategy.num_replicas_in_sync(), gpus);
      const auto net = strategy.create([] { return Net(); });
      EXPECT_LE(largest_difference(trained(strategy, net),
                                   weights_of_one_process(gpus)),
                kFewSteps);
    });
}

TEST_F(StrategiesOnCuda, CentralStorageTrainsWithTheOptimizerOnOneGpu) {
  for (const int gpus : {1, 2, 3})
    run_process(gpus, [=](const Group&) {
      CentralStorageStrategy strategy(on_gpus(gpus));
      const auto net = strategy.create([] { return Net(); });
      EXPECT_LE(largest_difference(trained(strategy, net),
                                   weights_of_one_process(gpus)),
                kFewSteps);
      const auto optimizer = optimizer_of(strategy, net);
      for (int i = 0; i < gpus; ++i)
        EXPECT_EQ(optimizer.local(i).optimizer() != nullptr, i == 0);
    });
}

TEST_F(StrategiesOnCuda, MultiWorkerTrainsAsOneProcessOnTheGlobalBatch) {
  run(2, [](const Group& group) {
    MultiWorkerMirroredStrategy strategy(group, gpu_of(*group));
    const auto net = strategy.create([] { return Net(); });
    EXPECT_EQ(net.local().parameters()[0].device(), gpu_of(*group));
    EXPECT_LE(
        largest_difference(trained(strategy, net), weights_of_one_process(2)),
        kFewSteps);
    const at::Tensor sum = strategy.reduce(
        ReduceOp::kSum, strategy.run([](const ReplicaContext& here) {
          return at::ones({2}, here.device);
        }));
    EXPECT_TRUE(sum.cpu().equal(at::full({2}, 2.0F)));
  });
}

TEST_F(StrategiesOnCuda, MirroredSynchronizesBatchNormalization) {
  run_process(2, [](const Group&) {
    MirroredStrategy strategy(on_gpus(2));
    const auto net = strategy.create([] { return NormalizedNet(); });
    strategy.run([&](const ReplicaContext& here) {
      EXPECT_EQ(convert_sync_batch_norm(*net[here], here.group), 1);
    });
    EXPECT_LE(largest_difference(trained(strategy, net),
                                 weights_of_one_process<NormalizedNet>(2)),
              kFewSteps);
  });
}

TEST_F(StrategiesOnCuda, EachReplicasDeviceIsCurrentInItsThread) {
  run_process(2, [](const Group&) {
    MirroredStrategy strategy(on_gpus(2));
    const auto current = strategy.run([](const ReplicaContext& here) {
      EXPECT_EQ(c10::impl::VirtualGuardImpl(at::kCUDA).getDevice(),
                here.device);
      return at::ones({2}, at::kCUDA).device();
    });
    EXPECT_EQ(current.local(0), at::Device(at::kCUDA, 0));
    EXPECT_EQ(current.local(1), at::Device(at::kCUDA, 1));
  });
}

TEST_F(StrategiesOnCuda, AllocateNothingOnAGpuThatIsNotAReplicas) {
  if (!is_fake()) GTEST_SKIP() << "only the fake tells";
  run_process(3, [](const Group&) {
    MirroredStrategy strategy(on_gpus(2, 1));  // 0 is current here
    const auto net =
        strategy.create([] { return std::make_shared<NetWithBatchNorm>(); });
    trained(strategy, net);
  });
  EXPECT_EQ(cuda_->allocated_on(0), 0);
  EXPECT_GT(cuda_->allocated_on(1), 0);
  EXPECT_GT(cuda_->allocated_on(2), 0);
}

TEST_F(StrategiesOnCuda, MakeModulesOfAnyFormOnTheGpuOfTheirReplica) {
  run_process(2, [](const Group&) {
    MirroredStrategy strategy(on_gpus(2));
    const auto holders =
        strategy.create([] { return torch::nn::Linear(2, 2); });
    const auto pointers =
        strategy.create([] { return std::make_shared<NetWithBatchNorm>(); });
    const at::Device second(at::kCUDA, 1);
    EXPECT_EQ(holders.local(1)->weight.device(), second);
    EXPECT_EQ(pointers.local(1)->norm->running_mean.device(), second);
    EXPECT_TRUE(
        holders.local(0)->weight.cpu().equal(holders.local(1)->weight.cpu()));
    EXPECT_THAT(message_of([&] {
                  strategy.create([] { return std::shared_ptr<Net>(); });
                }),
                HasSubstr("holder of the module is empty"));
  });
}

TEST_F(StrategiesOnCuda, ComputeInTheOrderOfTheCallersStreams) {
  run_process(2, [](const Group&) {
    MirroredStrategy strategy(on_gpus(2));
    const auto& replicas = strategy.local_replicas();
    const c10::impl::VirtualGuardImpl guard(at::kCUDA);
    const c10::Stream own = guard.getNewStream(replicas[1].device);
    const c10::StreamGuard scope(own);
    const at::Tensor input = at::ones({5}, replicas[1].device);
    const auto doubled = strategy.run([&](const ReplicaContext& here) {
      if (here.local_replica == 0) return at::ones({5}, here.device);
      EXPECT_EQ(guard.getStream(here.device), own);
      return input.mul(2);
    });
    EXPECT_TRUE(strategy.reduce(ReduceOp::kSum, doubled)
                    .cpu()
                    .equal(at::full({5}, 3.0F)));
  });
}

TEST_F(StrategiesOnCuda, HaveEveryGpuWhereNoDeviceIsNamed) {
  run_process(1, [](const Group&) {
    std::vector<at::Device> devices;
    MirroredStrategy strategy;
    for (const ReplicaContext& here : strategy.local_replicas())
      devices.push_back(here.device);
    std::vector<at::Device> all;
    const int count = c10::impl::VirtualGuardImpl(at::kCUDA).deviceCount();
    for (int gpu = 0; gpu < count; ++gpu)
      all.emplace_back(at::kCUDA, static_cast<at::DeviceIndex>(gpu));
    EXPECT_EQ(devices, all);
  });
}

TEST_F(StrategiesOnCuda, RefuseDevicesThatCannotHaveRanksOfAGroup) {
  run_process(1, [](const Group&) {
    const at::Device first(at::kCUDA, 0);
    const auto refusal = [](const std::vector<at::Device>& devices) {
      return message_of([&] { MirroredStrategy({.devices = devices}); });
    };
    EXPECT_THAT(refusal({first, first}),
                AllOf(HasSubstr("cuda:0"), HasSubstr("named twice"),
                      HasSubstr("each GPU once")));
    EXPECT_THAT(refusal({first, at::kCUDA}), HasSubstr("named twice"));
    EXPECT_THAT(refusal({first, at::kCPU}), HasSubstr("GPUs alone"));
    EXPECT_THAT(refusal({{at::kCUDA, 100}}), HasSubstr("numbered from 0"));
  });
}

TEST_F(StrategiesOnCuda, ThrowWhatAReplicaThrowsThoughOthersReduce) {
  run_process(2, [](const Group&) {
    MirroredStrategy strategy(on_gpus(2));
    const auto net = strategy.create([] { return Net(); });
    const auto pass = [&](bool fails) {
      strategy.run([&](const ReplicaContext& here) {
        const Share share = share_of(here, 0);
        at::Tensor output = net[here](share.input);
        if (fails && here.local_replica == 1)
          output.register_hook([](const at::Tensor&) -> at::Tensor {
            throw std::domain_error("planted");
          });
        loss_of(output, share.target).backward();
      });
    };
    pass(false);
    EXPECT_THAT(message_of([&] { pass(true); }), HasSubstr("planted"));
    EXPECT_THAT(message_of([&] { pass(false); }),
                HasSubstr("rank 1 left its backward pass by an exception"));
  });
}

TEST_F(StrategiesOnCuda, DistributeADatasetToTheGpusOfReplicas) {
  run_process(2, [](const Group&) {
    MirroredStrategy strategy(on_gpus(2));
    const NumberedSamples source(10);
    auto data = strategy.distribute_dataset(
        source, {.global_batch = 4, .shuffle = false});
    std::multiset<std::int64_t> seen;
    while (auto batch = data.next())
      for (const ReplicaContext& here : strategy.local_replicas()) {
        const auto& [images, labels] = (*batch)[here];
        EXPECT_EQ(images.device(), here.device);
        EXPECT_TRUE(images.flatten().cpu().equal(labels.cpu().to(at::kFloat)));
        const at::Tensor numbers = labels.cpu();
        for (std::int64_t i = 0; i < numbers.numel(); ++i)
          seen.insert(numbers[i].item<std::int64_t>());
      }
    EXPECT_THAT(seen, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 9));
  });
}

}  // namespace
}  // namespace lockstep::strategies
