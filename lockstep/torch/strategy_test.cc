#include "lockstep/torch/strategy.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>
#include <numeric>
#include <set>
#include <thread>

#include "lockstep/base/error.h"
#include "lockstep/comm/init.h"
#include "lockstep/comm/testing/run_ranks.h"
#include "lockstep/torch/testing/numbered_samples.h"
#include "lockstep/torch/testing/small_nets.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::UnorderedElementsAre;

StrategyOptions slots(int count) {
  return {.devices = std::vector<at::Device>(static_cast<std::size_t>(count),
                                             at::kCPU)};
}

at::Tensor losses_of(const at::Tensor& output, const at::Tensor& target) {
  return torch::square(output - target).mean(1);
}

torch::optim::SGDOptions rule() {
  return torch::optim::SGDOptions(0.1).momentum(0.9);
}

std::vector<at::Tensor> weights_of_one_process(int shares, int steps) {
  Net net;
  torch::optim::SGD optimizer(net.parameters(), rule());
  train(
      net, optimizer,
      [&](int step) { return share_of_batch(step, 0, 1, shares); }, steps);
  return net.parameters();
}

// Weights of the first replica after `steps`; all replicas must have them.
template <class Net>
std::vector<at::Tensor> trained(Strategy& strategy, PerReplica<Net> net,
                                int steps) {
  auto optimizer = strategy.create_optimizer(net, [](auto parameters) {
    return torch::optim::SGD(parameters, rule());
  });
  for (int step = 0; step < steps; ++step)
    strategy.run([&](const ReplicaContext& here) {
      const Share share = share_of_batch(step, here.replica_id_in_sync_group(),
                                         here.num_replicas_in_sync(),
                                         here.num_replicas_in_sync());
      optimizer[here].zero_grad();
      strategy
          .compute_average_loss(losses_of(net[here](share.input), share.target))
          .backward();
      optimizer[here].step();
    });
  for (std::size_t i = 1; i < net.size(); ++i)
    EXPECT_EQ(largest_difference(net.local(static_cast<int>(i)).parameters(),
                                 net.local().parameters()),
              0);
  return net.local().parameters();
}

TEST(MirroredStrategy, TrainsAsOneProcessOnTheGlobalBatch) {
  for (const int replicas : {1, 2, 3, 4}) {
    MirroredStrategy strategy(slots(replicas));
    EXPECT_EQ(strategy.num_replicas_in_sync(), replicas);
    auto net = strategy.create([] { return Net(); });
    EXPECT_LE(largest_difference(trained(strategy, net, 5),
                                 weights_of_one_process(replicas, 5)),
              2 * kTolerance);
  }
}

TEST(CentralStorageStrategy, TrainsAsOneProcessWithVariablesInOnePlace) {
  for (const int replicas : {1, 2, 3}) {
    CentralStorageStrategy strategy(slots(replicas));
    auto net = strategy.create([] { return Net(); });
    EXPECT_LE(largest_difference(trained(strategy, net, 5),
                                 weights_of_one_process(replicas, 5)),
              2 * kTolerance);
    for (int i = 0; i < replicas; ++i)
      for (std::size_t j = 0; j < net.local().parameters().size(); ++j)
        EXPECT_EQ(net.local(i).parameters()[j].const_data_ptr(),
                  net.local().parameters()[j].const_data_ptr());
  }
}

TEST(MultiWorkerMirroredStrategy, IsOneReplicaWhereNothingSaysOtherwise) {
  MultiWorkerMirroredStrategy strategy;
  EXPECT_EQ(strategy.num_replicas_in_sync(), 1);
  auto net = strategy.create([] { return Net(); });
  EXPECT_LE(largest_difference(trained(strategy, net, 5),
                               weights_of_one_process(1, 5)),
            kTolerance);
  destroy_process_group();
}

TEST(MirroredStrategy, GivesEachReplicaItsOwnVariablesOfTheSameValues) {
  MirroredStrategy strategy(slots(3));
  auto net = strategy.create([](const ReplicaContext& here) {
    auto module = std::make_shared<NetWithBatchNorm>();
    fill(*module, here.replica_id_in_sync_group() + 1);
    return module;
  });
  NetWithBatchNorm first;
  fill(first, 1);
  std::set<const void*> places;
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(largest_difference(net.local(i).parameters(), first.parameters()),
              0);
    places.insert(net.local(i).parameters()[0].const_data_ptr());
  }
  EXPECT_EQ(places.size(), 3);
}

// Statistics of replicas that have each made `steps` passes over their shares,
// added up and divided.
std::vector<at::Tensor> mean_statistics(int replicas, int steps) {
  std::vector<at::Tensor> mean{torch::zeros({3}), torch::zeros({3})};
  for (int replica = 0; replica < replicas; ++replica) {
    NetWithBatchNorm alone;
    for (int step = 0; step < steps; ++step)
      alone.forward(share_of_batch(step, replica, replicas, replicas).input);
    mean[0] += alone.norm->running_mean / replicas;
    mean[1] += alone.norm->running_var / replicas;
  }
  return mean;
}

// Passes over the replicas' shares; all of them then have the mean statistics.
void expect_mean_statistics(Strategy& strategy) {
  const int replicas = strategy.num_replicas_in_sync();
  const auto net = strategy.create([] { return NetWithBatchNorm(); });
  for (int step = 0; step < 4; ++step) {
    strategy.run([&](const ReplicaContext& here) {
      net[here](share_of_batch(step, here.replica_id_in_sync_group(), replicas,
                               replicas)
                    .input);
    });
    if (step == 0) continue;  // what is averaged goes on as if it were not
    strategy.average_buffers(net);
    for (std::size_t i = 0; i < net.size(); ++i) {
      const auto& norm = net.local(static_cast<int>(i))->norm;
      EXPECT_LE(largest_difference({norm->running_mean, norm->running_var},
                                   mean_statistics(replicas, step + 1)),
                kTolerance);
      EXPECT_EQ(norm->num_batches_tracked.template item<int>(), step + 1);
    }
  }
}

TEST(Strategy, AveragesTheRunningStatisticsOfReplicasWhenAsked) {
  for (const int replicas : {1, 2, 3}) {
    MirroredStrategy mirrored(slots(replicas));
    expect_mean_statistics(mirrored);
    CentralStorageStrategy central(slots(replicas));
    expect_mean_statistics(central);
    run_ranks(kBackend, replicas, [](const Group& group) {
      MultiWorkerMirroredStrategy workers(group);
      expect_mean_statistics(workers);
    });
  }
}

TEST(MirroredStrategy, RunsReplicasSideBySideInThreadsOfTheirOwn) {
  MirroredStrategy strategy(slots(3));
  const auto threads = strategy.run([](const ReplicaContext& here) {
    here.group->barrier().wait();  // none leaves before all are here
    return std::this_thread::get_id();
  });
  EXPECT_EQ(std::set({threads.local(0), threads.local(1), threads.local(2),
                      std::this_thread::get_id()})
                .size(),
            4);
}

TEST(Strategy, CreatesWhateverAFactoryMakes) {
  MirroredStrategy strategy(slots(2));
  auto numbers = strategy.create([](const ReplicaContext& here) {
    return std::vector<int>(3, here.replica_id_in_sync_group());
  });
  EXPECT_THAT(numbers.local(1), ElementsAre(1, 1, 1));
  auto layers = strategy.create([] { return torch::nn::Linear(2, 2); });
  static_assert(std::is_same_v<
                decltype(layers),
                PerReplica<DistributedDataParallel<torch::nn::LinearImpl>>>);
  EXPECT_TRUE(layers.local(0)->weight.equal(layers.local(1)->weight));
}

TEST(Strategy, ReducesWhatReplicasReturn) {
  MirroredStrategy strategy(slots(4));
  const auto values = strategy.run([](const ReplicaContext& here) {
    return torch::full({2}, here.replica_id_in_sync_group() + 1.0);
  });
  EXPECT_TRUE(
      strategy.reduce(ReduceOp::kSum, values).eq(10).all().item<bool>());
  EXPECT_TRUE(
      strategy.reduce(ReduceOp::kAverage, values).eq(2.5).all().item<bool>());
  EXPECT_TRUE(values.local(0).eq(1).all().item<bool>());
  EXPECT_THAT(message_of([&] { strategy.reduce(ReduceOp::kMax, values); }),
              HasSubstr("added up or averaged"));
  const auto counts = strategy.run(
      [](const ReplicaContext&) { return torch::ones({}, torch::kLong); });
  EXPECT_EQ(strategy.reduce(ReduceOp::kSum, counts).item<int>(), 4);
  EXPECT_THAT(message_of([&] { strategy.reduce(ReduceOp::kAverage, counts); }),
              HasSubstr("whole numbers"));
}

TEST(Strategy, DividesLossesByTheGlobalBatch) {
  MirroredStrategy strategy(slots(4));
  const at::Tensor losses = torch::tensor({1.0, 3.0});
  EXPECT_EQ(strategy.compute_average_loss(losses).item<double>(), 4.0 / 8);
  EXPECT_FLOAT_EQ(strategy.compute_average_loss(losses, 5).item<float>(), 0.8f);
  EXPECT_EQ(strategy.compute_average_loss(torch::ones({2, 7})).item<double>(),
            14.0 / 8);
  EXPECT_THAT(
      message_of([&] { strategy.compute_average_loss(torch::ones({})); }),
      HasSubstr("give losses, one a sample"));
  EXPECT_THAT(
      message_of([&] { strategy.compute_average_loss(torch::ones({0})); }),
      HasSubstr("a global batch of 0 samples"));
}

TEST(Strategy, StartsFromWhatOneProcessWouldStartFrom) {
  torch::manual_seed(5);
  const torch::nn::Linear alone(20, 20);
  torch::manual_seed(5);
  MirroredStrategy strategy(slots(3));
  auto net = strategy.create([] { return torch::nn::Linear(20, 20); });
  for (int i = 0; i < 3; ++i)
    EXPECT_TRUE(net.local(i)->weight.equal(alone->weight));
}

TEST(Strategy, TrainsModelsOfWhichAStepUsesAPart) {
  MirroredStrategy strategy(slots(2));
  auto net = strategy.create([] { return Net(); });
  strategy.run([&](const ReplicaContext& here) {
    Net& module = *net[here];
    torch::tanh(module.first(torch::ones({1, 6}))).sum().backward();
  });
  EXPECT_TRUE(net.local()->first->weight.grad().defined());
  EXPECT_FALSE(net.local()->third->weight.grad().defined());
}

TEST(Strategy, RefusesDevicesThatItCannotUse) {
  const auto refusal = [](std::vector<at::Device> devices) {
    return message_of([&] { MirroredStrategy({.devices = devices}); });
  };
  EXPECT_THAT(refusal({at::kMeta}), HasSubstr("only CPUs and CUDA's GPUs"));
  EXPECT_THAT(refusal({at::kCPU, {at::kCUDA, 0}}),
              AllOf(HasSubstr("cuda:0"), HasSubstr("CPUs alone")));
  EXPECT_THAT(refusal({{at::kCUDA, 100}}),
              AllOf(HasSubstr("cuda:100"), HasSubstr("LibTorch sees")));
}

TEST(Strategy, HasASlotForEachComputeThreadWhereThereIsNoGpu) {
  if (at::hasCUDA()) GTEST_SKIP() << "there is a GPU";
  EXPECT_EQ(MirroredStrategy().num_replicas_in_sync(), at::get_num_threads());
}

TEST(DistributedDataset, DividesEachGlobalBatchOverTheReplicas) {
  MirroredStrategy strategy(slots(3));
  const NumberedSamples source(14);
  auto data = strategy.distribute_dataset(
      source, {.global_batch = 6, .shuffle = false});
  EXPECT_EQ(data.batch_count(), 3);
  std::vector<std::vector<std::int64_t>> batches;
  while (auto batch = data.next()) {
    batches.emplace_back();
    for (int i = 0; i < 3; ++i) {
      const at::Tensor& labels = batch->local(i).labels;
      for (std::int64_t j = 0; j < labels.numel(); ++j)
        batches.back().push_back(labels[j].item<std::int64_t>());
    }
  }
  ASSERT_EQ(batches.size(), 3);
  EXPECT_THAT(batches[0], UnorderedElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_THAT(batches[1], UnorderedElementsAre(6, 7, 8, 9, 10, 11));
  EXPECT_THAT(batches[2], UnorderedElementsAre(12, 13, 0));  // 15 = 3 x 5
}

TEST(DistributedDataset, LeavesOutARemainder) {
  MirroredStrategy strategy(slots(2));
  const NumberedSamples source(11);
  auto data = strategy.distribute_dataset(
      source, {.global_batch = 4, .drop_remainder = true});
  int batches = 0;
  while (auto batch = data.next()) {
    EXPECT_EQ(batch->local(1).labels.numel(), 2);
    ++batches;
  }
  EXPECT_EQ(batches, 2);
}

TEST(DistributedDataset, RefusesABatchThatCannotBeDivided) {
  MirroredStrategy strategy(slots(3));
  const NumberedSamples source(12);
  EXPECT_THAT(message_of([&] {
                strategy.distribute_dataset(source, {.global_batch = 4});
              }),
              HasSubstr("cannot be divided evenly over 3 replicas"));
}

TEST(Strategy, ThrowsWhatAReplicaThrowsThoughOthersWaitForIt) {
  MirroredStrategy strategy(slots(3));
  EXPECT_THROW(strategy.run([](const ReplicaContext& here) {
    if (here.local_replica == 1) throw std::domain_error("bad sample");
    here.group->barrier().wait();
  }),
               std::domain_error);
  EXPECT_THAT(message_of([&] {
                strategy.run([](const ReplicaContext& here) {
                  here.group->barrier().wait();
                });
              }),
              HasSubstr("bad sample"));
}

TEST(Strategy, TellsOtherWorkersOfAStepThatThrows) {
  run_ranks(kBackend, 2, [](const Group& group) {
    MultiWorkerMirroredStrategy strategy(group);
    const auto step = [](const ReplicaContext& here) {
      if (here.replica_id_in_sync_group() == 1)
        throw std::domain_error("bad sample");
      here.group->barrier().wait();
    };
    EXPECT_THAT(message_of([&] { strategy.run(step); }),
                HasSubstr("bad sample"));
  });
}

}  // namespace
}  // namespace lockstep
