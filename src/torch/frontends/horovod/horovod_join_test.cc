// Ranks that run out of data call join().
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/torch/distributed_data_parallel.h"
#include "lockstep/torch/horovod.h"
#include "lockstep/torch/tensor_collectives.h"
#include "src/comm/testing/run_ranks.h"
#include "src/torch/testing/parameter_bag.h"
#include "src/torch/testing/small_nets.h"

namespace lockstep::horovod {
namespace {

using testing::AllOf;
using testing::HasSubstr;

torch::optim::SGD with_momentum(const torch::nn::Module& module) {
  return torch::optim::SGD(module.parameters(),
                           torch::optim::SGDOptions(0.1).momentum(0.9));
}

// What one process makes of the batches that ranks with data have in each step:
// the sum of their gradients times `scale`.
std::vector<at::Tensor> weights_of_uneven_ranks(const std::vector<int>& steps,
                                                double scale) {
  Net net;
  auto optimizer = with_momentum(net);
  const int ranks = static_cast<int>(steps.size());
  for (int step = 0; step < *std::ranges::max_element(steps); ++step) {
    optimizer.zero_grad();
    for (int rank = 0; rank < ranks; ++rank) {
      if (step >= steps[static_cast<std::size_t>(rank)]) continue;
      const Share share = share_of_batch(step, rank, ranks, ranks);
      (loss_of(net.forward(share.input), share.target) * scale).backward();
    }
    optimizer.step();
  }
  return net.parameters();
}

// Each rank makes its steps; all have the weights of the last in the end.
void expect_as_one_process(const std::vector<int>& steps, int last,
                           DistributedOptimizerOptions options,
                           double tolerance = kTolerance,
                           const std::string& backend = kBackend) {
  const int ranks = static_cast<int>(steps.size());
  const auto expected = weights_of_uneven_ranks(
      steps, options.op == StepOp(ReduceOp::kSum) ? 1 : 1.0 / ranks);
  run_ranks(backend, ranks, [&](const Group& group) {
    auto of_group = options;
    of_group.group = group;
    Net net;
    DistributedOptimizer optimizer(with_momentum(net), net.named_parameters(),
                                   of_group);
    allow_join(group);
    for (int step = 0; step < steps[static_cast<std::size_t>(group->rank())];
         ++step) {
      optimizer.zero_grad();
      backward(net, *group, step);
      optimizer.step();
    }
    EXPECT_EQ(join(group), last);
    broadcast_parameters(net, last, group);
    EXPECT_LE(largest_difference(net.parameters(), expected), tolerance);
  });
}

TEST(HorovodJoin, TakesPartInTheOthersStepsWithZeros) {
  expect_as_one_process({1, 2, 5}, 2, {});
  expect_as_one_process({5, 0, 3}, 0, {});
  expect_as_one_process({3, 3, 3}, 2, {});
  expect_as_one_process({0, 2}, 1, {});
}

TEST(HorovodJoin, WorksOnOtherBackends) {
  for (const char* const backend : {"reference", "hybrid"})
    expect_as_one_process({4, 0, 2}, 0, {}, kTolerance, backend);
}

TEST(HorovodJoin, WorksWithTheOptionsOfAnOptimizer) {
  const std::vector<int> steps{4, 1, 2};
  expect_as_one_process(steps, 0, {.op = ReduceOp::kSum}, 3 * kTolerance);
  expect_as_one_process(steps, 0, {.gradient_predivide_factor = 2});
  expect_as_one_process(steps, 0, {.compression = Compression::kFp16}, 1e-2);
  expect_as_one_process(steps, 0, {.sparse_as_dense = true});
}

TEST(HorovodJoin, TakesPartInReductionsOfTensors) {
  run_ranks(kBackend, 3, [](const Group& group) {
    allow_join(group);
    // Rank r has r + 1 tensors; all know which ranks have the n-th.
    for (int n = 0; n <= group->rank(); ++n) {
      const int with_data = 3 - n;
      const at::Tensor mine = torch::full({2, 2}, 6);
      EXPECT_TRUE(
          all_are(allreduce(mine.to(torch::kFloat), ReduceOp::kAverage, group),
                  2 * with_data));
      EXPECT_TRUE(
          all_are(allreduce(mine, ReduceOp::kSum, group), 6 * with_data));
      const at::Tensor changed = mine.to(torch::kDouble);
      allreduce_(changed, ReduceOp::kSum, group);
      EXPECT_TRUE(all_are(changed, 6 * with_data));
    }
    EXPECT_EQ(join(group), 2);
  });
}

TEST(HorovodJoin, TakesPartInTheBackwardPassOfAReduction) {
  run_ranks(kBackend, 2, [](const Group& group) {
    allow_join(group);
    if (group->rank() == 1) {
      const at::Tensor mine = torch::ones({3}).requires_grad_(true);
      allreduce(mine, ReduceOp::kAverage, group).sum().backward();
      EXPECT_TRUE(all_are(mine.grad(), 0.5));
    }
    EXPECT_EQ(join(group), 1);
  });
}

TEST(HorovodJoin, EndsWhenAllHaveJoinedAndBeginsAnew) {
  run_ranks(kBackend, 3, [](const Group& group) {
    allow_join(group);
    EXPECT_EQ(join(group), 2);
    for (const int last : {0, 1, 2}) {
      if (group->rank() == last)
        allreduce(torch::ones({1}), ReduceOp::kSum, group);
      EXPECT_EQ(join(group), last);
    }
    EXPECT_TRUE(all_are(allreduce(torch::ones({1}), ReduceOp::kSum, group), 3));
    EXPECT_TRUE(all_are(allgather(torch::ones({1}), group), 1));
  });
}

TEST(HorovodJoin, TakesPartInSeveralOptimizersByTurns) {
  run_ranks(kBackend, 2, [](const Group& group) {
    allow_join(group);
    ParameterBag first("ab"), second("cd");
    const auto optimizer_of = [&](const ParameterBag& bag) {
      return DistributedOptimizer(torch::optim::SGD(bag.parameters(), 0.1),
                                  bag.named_parameters(), {.group = group});
    };
    auto of_first = optimizer_of(first), of_second = optimizer_of(second);
    for (int step = 0; step < (group->rank() == 0 ? 3 : 1); ++step) {
      for (auto* optimizer : {&of_first, &of_second}) optimizer->zero_grad();
      const bool alone = step > 0;
      second.forward("dc", 4).backward();
      of_second.step();
      first.forward("ab", 2).backward();
      of_first.step();
      EXPECT_EQ(first.gradients(), std::vector<double>(2, alone ? 1 : 2));
      EXPECT_EQ(second.gradients(), std::vector<double>(2, alone ? 2 : 4));
    }
    EXPECT_EQ(join(group), 0);
  });
}

TEST(HorovodJoin, TakesPartInPassesOfDifferentParameters) {
  run_ranks(kBackend, 3, [](const Group& group) {
    allow_join(group);
    ParameterBag bag("abc");
    DistributedOptimizer optimizer(torch::optim::SGD(bag.parameters(), 0.1),
                                   bag.named_parameters(), {.group = group});
    for (int step = 0; step < 2 - group->rank() / 2; ++step) {
      optimizer.zero_grad();
      bag.forward("ab", 3).backward();
      if (group->rank() == 1) bag.forward("c", 6).backward();
      optimizer.synchronize();
      const double a = step == 0 ? 3 : 2;
      EXPECT_EQ(bag.gradients(), (std::vector<double>{a, a, 2}));
      optimizer.step();
    }
    EXPECT_EQ(join(group), 1);
  });
}

TEST(HorovodJoin, TakesPartInStepsOfFewerPassesThanUsual) {
  run_ranks(kBackend, 2, [](const Group& group) {
    allow_join(group);
    ParameterBag bag("ab");
    DistributedOptimizer optimizer(
        torch::optim::SGD(bag.parameters(), 0.1), bag.named_parameters(),
        {.group = group, .backward_passes_per_step = 2});
    bag.forward("ab", 2).backward();  // rank 0 joins in the middle of a step
    if (group->rank() == 1) {
      optimizer.step();
      EXPECT_EQ(bag.gradients(), (std::vector<double>{1, 1}));
      optimizer.zero_grad();
      bag.forward("a", 2).backward();
      bag.forward("b", 4).backward();
      optimizer.step();
      EXPECT_EQ(bag.gradients(), (std::vector<double>{1, 2}));
    }
    EXPECT_EQ(join(group), 1);
  });
}

// What a rank has accumulated and not reduced belongs to no later step.
TEST(HorovodJoin, BeginsAnewOnTheRankThatJoinsLastToo) {
  run_ranks(kBackend, 2, [](const Group& group) {
    allow_join(group);
    ParameterBag bag("ab");
    DistributedOptimizer optimizer(
        torch::optim::SGD(bag.parameters(), 0.1), bag.named_parameters(),
        {.group = group, .backward_passes_per_step = 2});
    if (group->rank() == 0) bag.forward("ab", 64).backward();
    EXPECT_EQ(join(group), 1);
    for (int step = 0; step < 2; ++step) {
      for (int pass = 0; pass < 2; ++pass) bag.forward("ab", 2).backward();
      optimizer.step();
      EXPECT_EQ(bag.gradients(), (std::vector<double>{4, 4})) << step;
      optimizer.zero_grad();
    }
  });
}

TEST(HorovodJoin, RefusesOnOneRankWhatTheOthersDoNotHearOf) {
  run_ranks(kBackend, 2, [](const Group& group) {
    allow_join(group);
    if (group->rank() == 0) {
      const at::Tensor sparse = torch::eye(2).to_sparse();
      for (const at::Tensor& bad : {at::Tensor(), sparse}) {
        EXPECT_THAT(message_of([&] { allgather(bad, group); }),
                    HasSubstr("allgather: the tensor is "));
        EXPECT_THAT(message_of([&] { adasum(bad, group); }),
                    HasSubstr("adasum: the tensor is "));
      }
    }
    EXPECT_TRUE(all_are(allreduce(torch::ones({1}), ReduceOp::kSum, group), 2));
  });
}

// On every rank: rank 1 has joined while the others call `body`.
void expect_refused(const std::string& what,
                    const std::function<void(const Group&)>& body) {
  run_ranks(kBackend, 3, [&](const Group& group) {
    allow_join(group);
    const auto call = [&] {
      if (group->rank() == 1)
        join(group);
      else
        body(group);
    };
    EXPECT_THROW(call(), InvalidArgument);
    EXPECT_THAT(message_of(call),
                AllOf(HasSubstr(what), HasSubstr("rank 1 joined"),
                      HasSubstr("ranks:   0, 2: " + what)));
    EXPECT_TRUE(all_are(allreduce(torch::ones({1}), ReduceOp::kSum, group), 3));
  });
}

TEST(HorovodJoin, NamesTheJoinedRanksWhereTheyCannotTakePart) {
  const at::Tensor ones = torch::ones({2});
  expect_refused("allgather",
                 [&](const Group& group) { allgather(ones, group); });
  expect_refused("adasum", [&](const Group& group) { adasum(ones, group); });
  expect_refused("allreduce (max) of 2 x Float", [&](const Group& group) {
    allreduce(ones, ReduceOp::kMax, group);
  });
  expect_refused("broadcast_object", [&](const Group& group) {
    broadcast_object(std::int64_t{1}, 0, group);
  });
  expect_refused("allgather_object", [&](const Group& group) {
    allgather_object(std::int64_t{1}, group);
  });
  expect_refused("broadcast_parameters", [&](const Group& group) {
    broadcast_parameters(Net(), 0, group);
  });
  expect_refused("broadcast_optimizer_state", [&](const Group& group) {
    Net net;
    auto optimizer = with_momentum(net);
    broadcast_optimizer_state(optimizer, 0, group);
  });
  expect_refused("making a DistributedOptimizer", [&](const Group& group) {
    const Net net;
    const DistributedOptimizer made(with_momentum(net), net.named_parameters(),
                                    {.group = group});
  });
}

TEST(HorovodJoin, TellsEveryRankWhereOthersCallDifferentOperations) {
  run_ranks(kBackend, 3, [](const Group& group) {
    allow_join(group);
    const auto call = [&] {
      if (group->rank() == 2)
        join(group);
      else
        allreduce(torch::ones({1 + group->rank()}), ReduceOp::kSum, group);
    };
    EXPECT_THAT(
        message_of(call),
        AllOf(HasSubstr("call different operations"), HasSubstr("2: join"),
              HasSubstr("1: allreduce (sum) of 2 x Float on cpu")));
    EXPECT_EQ(join(group), 2);
  });
}

TEST(HorovodJoin, IsAMismatchWithOperationsOfTheGroup) {
  run_ranks(kBackend, 2, [](const Group& group) {
    allow_join(group);
    const at::Tensor tensor = torch::ones({3});
    const auto call = [&] {
      if (group->rank() == 1)
        join(group);
      else
        all_reduce(*group, tensor).wait();
    };
    EXPECT_THROW(call(), Mismatch);
    EXPECT_TRUE(all_are(tensor, 1));
  });
}

TEST(HorovodJoin, IsRefusedWhereTheGroupDoesNotAllowIt) {
  run_ranks(kBackend, 2, [](const Group& group) {
    EXPECT_THAT(message_of([&] { join(group); }),
                HasSubstr("call allow_join() on every rank, after init()"));
    EXPECT_NO_THROW(group->barrier().wait());
  });
}

TEST(HorovodJoin, RefusesAReductionWithinAPassInWhichRanksHaveJoined) {
  run_ranks(kBackend, 2, [](const Group& group) {
    allow_join(group);
    ParameterBag bag("ab");
    DistributedOptimizer optimizer(torch::optim::SGD(bag.parameters(), 0.1),
                                   bag.named_parameters(), {.group = group});
    // What is computed last comes first in the backward pass: b's gradient
    // arrives before, a's after the reduction's.
    const auto step = [&] {
      optimizer.zero_grad();
      const at::Tensor all = allreduce(bag['a'] * 2, ReduceOp::kSum, group);
      (all.sum() + (bag['b'] * 2).sum()).backward();
      optimizer.step();
    };
    EXPECT_NO_THROW(step());
    if (group->rank() == 0) {
      const std::string why = message_of([&] { join(group); });
      EXPECT_THAT(why, HasSubstr("rank 1 left its backward pass"));
    } else {
      const std::string why = message_of(step);
      EXPECT_THAT(why, HasSubstr("within a backward pass"));
    }
  });
}

TEST(HorovodJoin, EndsWithAnErrorWhereTheOptimizerIsGone) {
  run_ranks(kBackend, 2, [](const Group& group) {
    allow_join(group);
    ParameterBag bag("a");
    auto optimizer = std::make_unique<DistributedOptimizer<torch::optim::SGD>>(
        torch::optim::SGD(bag.parameters(), 0.1), bag.named_parameters(),
        DistributedOptimizerOptions{.group = group});
    const auto call = [&] {
      if (group->rank() == 1) {
        optimizer.reset();
        join(group);
      } else {
        bag.forward("a", 1).backward();
      }
    };
    EXPECT_THAT(message_of(call), HasSubstr("keep it until join()"));
  });
}

TEST(HorovodJoin, KeepsDistributedDataParallelOutOfTheGroup) {
  run_ranks(kBackend, 2, [](const Group& group) {
    allow_join(group);
    auto model = DistributedDataParallel(Net(), {.group = group});
    EXPECT_THAT(message_of([&] { backward(model, *group); }),
                HasSubstr("in which allow_join() lets ranks run out of data"));
    EXPECT_NO_THROW(group->barrier().wait());
  });
}

TEST(HorovodJoin, IsOverAtOnceInAGroupOfOne) {
  run_ranks(kBackend, 1, [](const Group& group) {
    EXPECT_EQ(join(group), 0);
    allow_join(group);
    EXPECT_TRUE(all_are(allgather(torch::ones({1}), group), 1));
    EXPECT_EQ(join(group), 0);
  });
}

}  // namespace
}  // namespace lockstep::horovod
