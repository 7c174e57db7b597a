#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>
#include <numeric>
#include <set>
#include <thread>

#include "lockstep/base/error.h"
#include "lockstep/comm/groups.h"
#include "lockstep/torch/strategies.h"
#include "src/comm/testing/run_ranks.h"
#include "src/torch/testing/numbered_samples.h"
#include "src/torch/testing/small_nets.h"

namespace lockstep::strategies {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::UnorderedElementsAre;

StrategyOptions strategy_slots(int count) {
  return {.devices = std::vector<at::Device>(static_cast<std::size_t>(count),
                                             at::kCPU)};
}

at::Tensor losses_of(const at::Tensor& output, const at::Tensor& target) {
  return torch::square(output - target).mean(1);
}

torch::optim::SGDOptions strategy_rule() {
  return torch::optim::SGDOptions(0.1).momentum(0.9);
}

std::vector<at::Tensor> weights_of_one_replica(int shares, int steps) {
  Net net;
  torch::optim::SGD optimizer(net.parameters(), strategy_rule());
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
    return torch::optim::SGD(parameters, strategy_rule());
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
    MirroredStrategy strategy(strategy_slots(replicas));
    EXPECT_EQ(strategy.num_replicas_in_sync(), replicas);
    auto net = strategy.create([] { return Net(); });
    EXPECT_LE(largest_difference(trained(strategy, net, 5),
                                 weights_of_one_replica(replicas, 5)),
              2 * kTolerance);
  }
}

TEST(CentralStorageStrategy, TrainsAsOneProcessWithVariablesInOnePlace) {
  for (const int replicas : {1, 2, 3}) {
    CentralStorageStrategy strategy(strategy_slots(replicas));
    auto net = strategy.create([] { return Net(); });
    EXPECT_LE(largest_difference(trained(strategy, net, 5),
                                 weights_of_one_replica(replicas, 5)),
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
                               weights_of_one_replica(1, 5)),
            kTolerance);
  destroy_process_group();
}

TEST(MirroredStrategy, GivesEachReplicaItsOwnVariablesOfTheSameValues) {
  MirroredStrategy strategy(strategy_slots(3));
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

// The mean of the statistics of replicas that have each made `steps` passes
// over their shares.
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
    if (step == 0) continue;  // averaging must not change later steps
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
    MirroredStrategy mirrored(strategy_slots(replicas));
    expect_mean_statistics(mirrored);
    CentralStorageStrategy central(strategy_slots(replicas));
    expect_mean_statistics(central);
    run_ranks(kBackend, replicas, [](const Group& group) {
      MultiWorkerMirroredStrategy workers(group);
      expect_mean_statistics(workers);
    });
  }
}

TEST(MirroredStrategy, RunsReplicasSideBySideInThreadsOfTheirOwn) {
  MirroredStrategy strategy(strategy_slots(3));
  const auto threads = strategy.run([](const ReplicaContext& here) {
    here.group->barrier().wait();  // no replica leaves before all are here
    return std::this_thread::get_id();
  });
  EXPECT_EQ(std::set({threads.local(0), threads.local(1), threads.local(2),
                      std::this_thread::get_id()})
                .size(),
            4);
}

TEST(Strategy, CreatesWhateverAFactoryMakes) {
  MirroredStrategy strategy(strategy_slots(2));
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
  MirroredStrategy strategy(strategy_slots(4));
  const auto values = strategy.run([](const ReplicaContext& here) {
    return torch::full({2}, here.replica_id_in_sync_group() + 1.0);
  });
  EXPECT_TRUE(
      strategy.reduce(ReduceOp::kSum, values).eq(10).all().item<bool>());
  EXPECT_TRUE(
      strategy.reduce(ReduceOp::kAverage, values).eq(2.5).all().item<bool>());
  EXPECT_TRUE(values.local(0).eq(1).all().item<bool>());
  EXPECT_THAT(message_of([&] { strategy.reduce(ReduceOp::kMax, values); }),
              HasSubstr("summed or averaged"));
  const auto counts = strategy.run(
      [](const ReplicaContext&) { return torch::ones({}, torch::kLong); });
  EXPECT_EQ(strategy.reduce(ReduceOp::kSum, counts).item<int>(), 4);
  EXPECT_THAT(message_of([&] { strategy.reduce(ReduceOp::kAverage, counts); }),
              HasSubstr("integers cannot be averaged"));
}

TEST(Strategy, AveragesFloat16WhoseSumWouldOverflow) {
  MirroredStrategy strategy(strategy_slots(2));
  const auto values = strategy.run(
      [](const ReplicaContext&) { return at::full({4}, 40000, at::kHalf); });
  const auto whole = strategy.reduce(ReduceOp::kAverage, values);
  EXPECT_TRUE(whole.equal(at::full({4}, 40000, at::kHalf)));
  EXPECT_EQ(strategy.reduce(ReduceOp::kAverage, values, 0).item<float>(),
            40000);
  EXPECT_EQ(strategy.compute_average_loss(at::full({10000}, 10, at::kHalf))
                .item<float>(),
            5);
}

TEST(Strategy, RefusesToReduceValuesThatDiffer) {
  MirroredStrategy strategy(strategy_slots(2));
  const auto sizes = strategy.run([](const ReplicaContext& here) {
    return torch::ones({2, here.replica_id_in_sync_group() == 0 ? 3 : 1});
  });
  EXPECT_THAT(message_of([&] { strategy.reduce(ReduceOp::kSum, sizes); }),
              HasSubstr("values of [2, 3] of type Float and of [2, 1]"));
  EXPECT_THAT(message_of([&] { strategy.reduce(ReduceOp::kSum, sizes, 0); }),
              HasSubstr("may differ along the axis"));
  EXPECT_EQ(strategy.reduce(ReduceOp::kSum, sizes, 1).sum().item<float>(), 8);
  const auto types = strategy.run([](const ReplicaContext& here) {
    return torch::ones({2}, here.replica_id_in_sync_group() == 0
                                ? torch::kFloat
                                : torch::kLong);
  });
  EXPECT_THAT(message_of([&] { strategy.reduce(ReduceOp::kSum, types); }),
              HasSubstr("of type Float and of [2] of type Long"));
}

// Replica r's value: r + 1 rows of three numbers.
at::Tensor rows_of(const ReplicaContext& here) {
  const int rows = here.replica_id_in_sync_group() + 1;
  return torch::arange(3 * rows, torch::kDouble).view({rows, 3}) + rows;
}

void reduce_and_gather_uneven_rows(Strategy& strategy) {
  const auto values = strategy.run(rows_of);
  std::vector<at::Tensor> rows;
  for (int replica = 0; replica < strategy.num_replicas_in_sync(); ++replica)
    rows.push_back(torch::arange(3 * (replica + 1), torch::kDouble)
                       .view({replica + 1, 3}) +
                   (replica + 1));
  const at::Tensor all = torch::cat(rows, 0);
  EXPECT_TRUE(strategy.gather(values, 0).equal(all));
  EXPECT_TRUE(strategy.gather(values, -2).equal(all));
  const auto columns = strategy.run(
      [](const ReplicaContext& here) { return rows_of(here).t(); });
  EXPECT_TRUE(strategy.gather(columns, 1).equal(all.t()));
  EXPECT_TRUE(strategy.reduce(ReduceOp::kSum, values, 0).allclose(all.sum(0)));
  EXPECT_TRUE(
      strategy.reduce(ReduceOp::kAverage, values, -2).allclose(all.mean(0)));
  EXPECT_THAT(message_of([&] { strategy.reduce(ReduceOp::kSum, values, 2); }),
              HasSubstr("has no axis 2"));
  const auto some = strategy.run([](const ReplicaContext& here) {
    return here.replica_id_in_sync_group() == 1 ? torch::ones({2, 2})
                                                : torch::ones({2});
  });
  EXPECT_THAT(message_of([&] { strategy.reduce(ReduceOp::kSum, some, 1); }),
              HasSubstr("has no axis 1"));
  EXPECT_THAT(message_of([&] { strategy.gather(values, 1); }),
              AllOf(HasSubstr("along axis 1: replica 0 has [1, 3]"),
                    HasSubstr("replica 1 [2, 3]")));
  EXPECT_THAT(message_of([&] { strategy.gather(values, 2); }),
              HasSubstr("differ only there"));

  const auto types = strategy.run([](const ReplicaContext& here) {
    return torch::ones(
        {2}, here.replica_id_in_sync_group() == 1 ? torch::kLong : torch::kInt);
  });
  EXPECT_THAT(message_of([&] { strategy.gather(types, 0); }),
              HasSubstr("of type Long"));
  const auto counts = strategy.run([](const ReplicaContext& here) {
    return torch::full({here.replica_id_in_sync_group()}, 2, torch::kInt);
  });
  const at::Tensor total = strategy.reduce(ReduceOp::kSum, counts, 0);
  EXPECT_EQ(total.scalar_type(), torch::kInt);
  EXPECT_EQ(total.item<int>(), 2 * 3);
}

TEST(Strategy, ReducesAndGathersAlongAnAxis) {
  MirroredStrategy strategy(strategy_slots(3));
  reduce_and_gather_uneven_rows(strategy);
  run_ranks(kBackend, 3, [](const Group& group) {
    MultiWorkerMirroredStrategy workers(group);
    reduce_and_gather_uneven_rows(workers);
  });
}

TEST(Strategy, DividesLossesByTheGlobalBatch) {
  MirroredStrategy strategy(strategy_slots(4));
  const at::Tensor losses = torch::tensor({1.0, 3.0});
  EXPECT_EQ(strategy.compute_average_loss(losses).item<double>(), 4.0 / 8);
  EXPECT_FLOAT_EQ(
      strategy.compute_average_loss(losses, {.global_batch_size = 5})
          .item<float>(),
      0.8f);
  EXPECT_EQ(strategy.compute_average_loss(torch::ones({2, 7})).item<double>(),
            14.0 / 8);
  EXPECT_EQ(strategy.compute_average_loss(torch::tensor({true, true, false}))
                .item<float>(),
            2.0F / 12);
  EXPECT_THAT(
      message_of([&] { strategy.compute_average_loss(torch::ones({0})); }),
      HasSubstr("a global batch of 0 samples"));
}

TEST(Strategy, RefusesALossThatIsAMeanAlready) {
  MirroredStrategy strategy(strategy_slots(2));
  for (const AverageLossOptions& options :
       {AverageLossOptions{}, AverageLossOptions{.global_batch_size = 8}})
    EXPECT_THAT(message_of([&] {
                  strategy.compute_average_loss(torch::ones({}), options);
                }),
                AllOf(HasSubstr("divided already"),
                      HasSubstr("give one loss per sample")));
}

// The expected numbers follow the documentation of tf.nn.compute_average_loss:
// weights multiply losses, and the sum is divided by the number of samples.
TEST(Strategy, WeighsSamples) {
  MirroredStrategy strategy(strategy_slots(2));
  const at::Tensor losses = torch::tensor({1.0, 3.0});
  const auto average = [&](const at::Tensor& of, const at::Tensor& weights) {
    return strategy.compute_average_loss(of, {.sample_weight = weights});
  };
  const at::Tensor weights = torch::tensor({0.5, 2.0}).requires_grad_();
  const at::Tensor weighted = average(losses, weights);
  EXPECT_EQ(weighted.item<double>(), 6.5 / 4);
  weighted.backward();  // weights may be learnt
  EXPECT_TRUE(weights.grad().equal(losses / 4));
  EXPECT_EQ(average(losses, torch::tensor(3)).item<double>(), 12.0 / 4);
  EXPECT_EQ(average(losses, torch::tensor({{0.5}, {2.0}})).item<double>(),
            6.5 / 4);
  EXPECT_EQ(average(torch::ones({2, 3}), torch::tensor({1, 2})).item<double>(),
            9.0 / 4);
  EXPECT_EQ(average(torch::ones({2, 3}), torch::tensor({{1, 2, 3}, {4, 5, 6}}))
                .item<double>(),
            21.0 / 4);
  for (const auto& wrong :
       {torch::ones({3}), torch::ones({1}), torch::ones({2, 2})})
    EXPECT_THAT(message_of([&] { average(losses, wrong); }),
                HasSubstr("give one weight per sample"));
}

TEST(Strategy, StartsFromWhatOneProcessWouldStartFrom) {
  torch::manual_seed(5);
  const torch::nn::Linear alone(20, 20);
  torch::manual_seed(5);
  MirroredStrategy strategy(strategy_slots(3));
  auto net = strategy.create([] { return torch::nn::Linear(20, 20); });
  for (int i = 0; i < 3; ++i)
    EXPECT_TRUE(net.local(i)->weight.equal(alone->weight));
}

TEST(Strategy, TrainsModelsOfWhichAStepUsesAPart) {
  MirroredStrategy strategy(strategy_slots(2));
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
  EXPECT_THAT(refusal({at::kMeta}), HasSubstr("only CPUs and CUDA GPUs"));
  EXPECT_THAT(refusal({at::kCPU, {at::kCUDA, 0}}),
              AllOf(HasSubstr("cuda:0"), HasSubstr("CPUs alone")));
  EXPECT_THAT(refusal({{at::kCUDA, 100}}),
              AllOf(HasSubstr("cuda:100"), HasSubstr("LibTorch sees")));
}

TEST(Strategy, HasASlotForEachComputeThreadWhereThereIsNoGpu) {
  if (at::hasCUDA()) GTEST_SKIP() << "there is a GPU";
  EXPECT_EQ(MirroredStrategy().num_replicas_in_sync(), at::get_num_threads());
}

// Each replica's samples in each global batch of a pass.
using Part = std::vector<std::int64_t>;

std::vector<std::vector<Part>> pass_of(Strategy& strategy,
                                       DistributedDataset data) {
  std::vector<std::vector<Part>> batches;
  EXPECT_EQ(data.samples(), 0);
  while (auto batch = data.next()) {
    auto& parts = batches.emplace_back();
    std::int64_t samples = 0;
    for (std::size_t i = 0; i < strategy.local_replicas().size(); ++i) {
      const auto& [images, labels] = batch->local(static_cast<int>(i));
      EXPECT_EQ(images.sizes(),
                (std::vector<std::int64_t>{labels.size(0), 1, 1, 1}));
      EXPECT_EQ(images.scalar_type(), at::kFloat);
      EXPECT_TRUE(images.flatten().equal(labels.to(at::kFloat)));
      parts.emplace_back(
          labels.const_data_ptr<std::int64_t>(),
          labels.const_data_ptr<std::int64_t>() + labels.numel());
      samples += labels.numel();
    }
    EXPECT_EQ(data.samples(), samples);
  }
  EXPECT_EQ(data.batch_count(), std::ssize(batches));
  return batches;
}

TEST(DistributedDataset, DividesEachGlobalBatchOverTheReplicas) {
  MirroredStrategy strategy(strategy_slots(3));
  const NumberedSamples source(14);
  EXPECT_THAT(
      pass_of(strategy, strategy.distribute_dataset(
                            source, {.global_batch = 6, .shuffle = false})),
      ElementsAre(ElementsAre(Part{0, 3}, Part{1, 4}, Part{2, 5}),
                  ElementsAre(Part{6, 9}, Part{7, 10}, Part{8, 11}),
                  ElementsAre(Part{12}, Part{13}, Part{0})));  // 15 = 3 x 5
}

TEST(DistributedDataset, HasEachSampleOnceWhereItDoesNotPad) {
  MirroredStrategy strategy(strategy_slots(3));
  const NumberedSamples source(13);
  EXPECT_THAT(
      pass_of(strategy,
              strategy.distribute_dataset(
                  source, {.global_batch = 6, .shuffle = false, .pad = false})),
      ElementsAre(ElementsAre(Part{0, 3}, Part{1, 4}, Part{2, 5}),
                  ElementsAre(Part{6, 9}, Part{7, 10}, Part{8, 11}),
                  ElementsAre(Part{12}, Part{}, Part{})));
}

TEST(DistributedDataset, ShufflesEachSampleOnceAsItDoesWhenItPads) {
  MirroredStrategy strategy(strategy_slots(2));
  const NumberedSamples source(9);
  DistributedDatasetOptions options{.global_batch = 4, .seed = 3, .epoch = 2};
  auto padded = pass_of(strategy, strategy.distribute_dataset(source, options));
  options.pad = false;
  const auto once =
      pass_of(strategy, strategy.distribute_dataset(source, options));
  padded.back()[1].clear();  // the tenth, which is the first again
  EXPECT_EQ(once, padded);
}

TEST(DistributedDataset, EndsAtOnceWithoutSamples) {
  MirroredStrategy strategy(strategy_slots(2));
  const NumberedSamples source(0);
  for (const bool pad : {true, false})
    EXPECT_TRUE(pass_of(strategy, strategy.distribute_dataset(
                                      source, {.global_batch = 4, .pad = pad}))
                    .empty());
}

TEST(DistributedDataset, TrainsAsOneProcessOnSharesOfWhichSomeAreEmpty) {
  const NumberedSamples source(5);
  const auto step = [](auto& model, const BatchTensors& batch) {
    const at::Tensor input =
        batch.images.flatten(1).expand({-1, 6}).div(10).contiguous();
    return losses_of(model(input), torch::zeros({input.size(0), 3}));
  };
  Net alone;
  torch::optim::SGD optimizer(alone.parameters(), strategy_rule());
  MirroredStrategy strategy(strategy_slots(4));
  auto net = strategy.create([] { return Net(); });
  auto own = strategy.create_optimizer(net, [](auto parameters) {
    return torch::optim::SGD(parameters, strategy_rule());
  });
  auto data = strategy.distribute_dataset(
      source, {.global_batch = 4, .shuffle = false, .pad = false});
  std::int64_t begin = 0;
  while (const auto batch = data.next()) {
    const std::int64_t samples = data.samples();
    strategy.run([&](const ReplicaContext& here) {
      own[here].zero_grad();
      strategy
          .compute_average_loss(step(net[here], (*batch)[here]),
                                {.global_batch_size = samples})
          .backward();
      own[here].step();
    });
    optimizer.zero_grad();
    const at::Tensor numbers =
        torch::arange(begin, begin + samples, torch::kFloat);
    const auto forward = [&](const at::Tensor& input) {
      return alone.forward(input);
    };
    step(forward, {numbers.view({-1, 1, 1, 1}), {}}).mean().backward();
    optimizer.step();
    begin += samples;
  }
  EXPECT_EQ(begin, 5);
  EXPECT_LE(largest_difference(net.local(3).parameters(), alone.parameters()),
            kTolerance);
}

TEST(DistributedDataset, LeavesOutARemainder) {
  MirroredStrategy strategy(strategy_slots(2));
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
  MirroredStrategy strategy(strategy_slots(3));
  const NumberedSamples source(12);
  EXPECT_THAT(message_of([&] {
                strategy.distribute_dataset(source, {.global_batch = 4});
              }),
              HasSubstr("cannot be divided evenly over 3 replicas"));
}

TEST(Strategy, ComparesItsReplicasAsOftenAsAsked) {
  for (const int every : {0, 2}) {
    MirroredStrategy strategy(strategy_slots(2));
    auto net = strategy.create([] { return Net(); },
                               {.compare_replicas_every = every});
    const auto step = [&] {
      strategy.run([&](const ReplicaContext& here) {
        net[here](torch::ones({1, 6})).sum().backward();
      });
    };
    step();
    {
      const torch::NoGradGuard no_grad;
      net.local(1)->second->bias[2] += 1;
    }
    EXPECT_THAT(message_of(step), every == 0 ? HasSubstr("no error")
                                             : HasSubstr("second.bias[2] is"));
  }
}

TEST(Strategy, ThrowsWhatAReplicaThrowsThoughOthersWaitForIt) {
  MirroredStrategy strategy(strategy_slots(3));
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
}  // namespace lockstep::strategies
