// Uneven inputs: ranks that run different numbers of passes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/utils/convert_parameters.h>

#include "lockstep/base/error.h"
#include "lockstep/torch/distributed_data_parallel.h"
#include "lockstep/torch/horovod.h"
#include "lockstep/torch/sync_batch_norm.h"
#include "lockstep/torch/tensor_collectives.h"
#include "src/comm/testing/run_ranks.h"
#include "src/torch/testing/parameter_bag.h"

namespace lockstep {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsNan;

Share share_of(int step, int rank, int ranks) {
  return share_of_batch(step, rank, ranks, ranks);
}

torch::optim::SGD sgd_of(const torch::nn::Module& module) {
  return torch::optim::SGD(module.parameters(),
                           torch::optim::SGDOptions(0.1).momentum(0.9));
}

// The obvious version: one process that adds up what the ranks with data have.
std::vector<at::Tensor> weights_of_one_process(const std::vector<int>& steps,
                                               const JoinOptions& options) {
  const int ranks = static_cast<int>(steps.size());
  Net net;
  auto optimizer = sgd_of(net);
  for (int step = 0; step < *std::ranges::max_element(steps); ++step) {
    optimizer.zero_grad();
    int active = 0;
    at::Tensor loss = torch::zeros({});
    for (int rank = 0; rank < ranks; ++rank) {
      if (steps[static_cast<std::size_t>(rank)] <= step) continue;
      ++active;
      const Share share = share_of(step, rank, ranks);
      loss = loss + loss_of(net.forward(share.input), share.target);
    }
    const int divisor = options.divide_by_initial_world_size ? ranks : active;
    (loss / divisor).backward();
    optimizer.step();
  }
  return net.parameters();
}

// Trains on `group` in a scope of join(), this rank for its number of steps.
template <class Module>
void train_for(DistributedDataParallel<Module>& model, const Group& group,
               const std::vector<int>& steps, const JoinOptions& options) {
  auto optimizer = sgd_of(*model);
  const auto scope = model.join(options);
  for (int step = 0; step < steps[static_cast<std::size_t>(group->rank())];
       ++step) {
    const Share share = share_of(step, group->rank(), group->size());
    optimizer.zero_grad();
    loss_of(model(share.input), share.target).backward();
    optimizer.step();
  }
}

TEST(Join, LearnsFromTheDataOfEveryRankToTheLast) {
  for (const auto& steps : std::vector<std::vector<int>>{
           {2}, {3, 1}, {0, 2}, {1, 3, 2}, {5, 0, 2, 4}, {2, 2}, {0, 0}})
    for (const bool by_all : {true, false}) {
      const JoinOptions options{.divide_by_initial_world_size = by_all};
      const auto expected = weights_of_one_process(steps, options);
      run_ranks(
          kBackend, static_cast<int>(steps.size()), [&](const Group& group) {
            auto model = DistributedDataParallel(Net(), small_buckets(group));
            train_for(model, group, steps, options);
            EXPECT_LE(largest_difference(model.parameters(), expected),
                      kTolerance);
          });
    }
}

TEST(Join, GivesAllRanksTheBuffersOfTheLastOneWithData) {
  std::vector<std::vector<at::Tensor>> buffers(3);
  run_ranks(kBackend, 3, [&](const Group& group) {
    auto model = DistributedDataParallel(NetWithBatchNorm(), {.group = group});
    train_for(model, group, {1, 4, 2}, {});
    EXPECT_EQ(model->norm->num_batches_tracked.template item<int>(), 4);
    buffers[static_cast<std::size_t>(group->rank())] = model.buffers();
  });
  EXPECT_EQ(largest_difference(buffers[0], buffers[1]), 0);
  EXPECT_EQ(largest_difference(buffers[0], buffers[2]), 0);
}

TEST(Join, GivesBuffersOfTheLastOneWithDataWhereTheyAreBroadcast) {
  run_ranks(kBackend, 3, [&](const Group& group) {
    for (const bool always : {true, false}) {
      auto model = DistributedDataParallel(
          NetWithBatchNorm(), {.group = group, .broadcast_buffers = always});
      at::Tensor& mean = model->norm->running_mean;
      {
        const auto scope = model.join();
        if (group->rank() < 2) {
          mean.fill_(group->rank());
          model.broadcast_buffers();
          EXPECT_TRUE(all_are(mean, 1));
        }
      }
      EXPECT_TRUE(all_are(mean, 1));
    }
  });
}

TEST(Join, LeavesEachRankItsBuffersWhereTheyAreNotBroadcast) {
  run_ranks(kBackend, 3, [](const Group& group) {
    auto model = DistributedDataParallel(
        NetWithBatchNorm(), {.group = group, .broadcast_buffers = false});
    const std::vector<int> steps{1, 4, 2};
    train_for(model, group, steps, {});
    EXPECT_EQ(model->norm->num_batches_tracked.template item<int>(),
              steps[static_cast<std::size_t>(group->rank())]);
  });
}

TEST(Join, MayBeEnteredAgainAndFollowedByEvenSteps) {
  run_ranks(kBackend, 2, [](const Group& group) {
    auto model = DistributedDataParallel(Net(), small_buckets(group));
    train_for(model, group, {0, 2}, {});
    train_for(model, group, {3, 1}, {});
    fill(*model, 0);
    model.zero_grad();
    backward(model, *group);
    EXPECT_LE(
        largest_difference(gradients_of(*model), gradients_of_one_process(2)),
        kTolerance);
  });
}

TEST(Join, LeavesLocalPassesToThemselves) {
  const auto expected = weights_of_one_process({1, 3}, {});
  run_ranks(kBackend, 2, [&](const Group& group) {
    auto model = DistributedDataParallel(Net(), small_buckets(group));
    auto optimizer = sgd_of(*model);
    const auto run = [&] {
      const auto scope = model.join();
      for (int step = 0; step < 1 + 2 * group->rank(); ++step) {
        optimizer.zero_grad();
        const Share share = share_of(step, group->rank(), 2);
        const auto half_of_loss = [&] {
          return loss_of(model(share.input), share.target) / 2;
        };
        {
          const auto guard = model.no_sync();
          half_of_loss().backward();
        }
        half_of_loss().backward();
        optimizer.step();
      }
    };
    run();
    EXPECT_LE(largest_difference(model.parameters(), expected), kTolerance);
  });
}

TEST(Join, ToleratesUnusedParametersLikeAnyPass) {
  run_ranks(kBackend, 3, [](const Group& group) {
    auto bag = std::make_shared<ParameterBag>();
    auto model = DistributedDataParallel(
        bag, {.group = group, .find_unused_parameters = true});
    const auto scope = model.join();
    for (int step = 0; step < group->rank(); ++step) {
      bag->zero_grad();
      model(group->rank() == 2 ? "ab" : "b", 3).backward();
      EXPECT_THAT(bag->gradients(), ElementsAre(1, step == 0 ? 2 : 1, IsNan()));
    }
  });
}

TEST(Join, LetsARankLearnAStaticGraphInALaterScope) {
  run_ranks(kBackend, 2, [](const Group& group) {
    auto bag = std::make_shared<ParameterBag>();
    auto model = DistributedDataParallel(bag, {.group = group,
                                               .first_bucket_bytes = 0,
                                               .bucket_bytes = 0,
                                               .static_graph = true});
    for (const int rank_without_data : {0, 1, 0}) {
      const auto scope = model.join();
      if (group->rank() == rank_without_data) continue;
      for (int step = 0; step < 3; ++step) {
        bag->zero_grad();
        model("ba", 2).backward();
        EXPECT_THAT(bag->gradients(), ElementsAre(1, 1, IsNan()));
      }
    }
  });
}

TEST(Join, EndsOnEveryRankWhenOneIsOutOfDataIfAskedTo) {
  run_ranks(kBackend, 3, [](const Group& group) {
    auto model = DistributedDataParallel(Net(), small_buckets(group));
    const std::string message = message_of([&] {
      train_for(model, group, {3, 1, 3}, {.throw_on_early_termination = true});
    });
    EXPECT_THAT(message, HasSubstr("ranks:   1 out of data\n"));
    EXPECT_THAT(message, HasSubstr("ranks:   0, 2 in a backward pass"));
    train_for(model, group, {2, 2, 2}, {.throw_on_early_termination = true});
  });
}

TEST(Join, NamesTheRanksThatAreNotAtTheSamePoint) {
  run_ranks(kBackend, 2, [](const Group& group) {
    auto model = DistributedDataParallel(NetWithBatchNorm(), {.group = group});
    if (group->rank() == 1) model.eval();
    const std::string message = message_of([&] {
      train_for(model, group, {1, 1}, {});
    });
    EXPECT_THAT(message, HasSubstr("ranks:   0 in a forward pass"));
    EXPECT_THAT(message, HasSubstr("ranks:   1 in a backward pass"));
  });
}

TEST(Join, LeavesTheOthersAnErrorWhenARankLeavesItByAnException) {
  EXPECT_THROW(run_ranks(kBackend, 2,
                         [](const Group& group) {
                           auto model = DistributedDataParallel(
                               Net(), small_buckets(group));
                           const auto train = [&] {
                             const auto scope = model.join();
                             backward(model, *group);
                             if (group->rank() == 1)
                               throw std::range_error("of data");
                             backward(model, *group);
                           };
                           if (group->rank() == 0)
                             EXPECT_THROW(train(), PeerFailure);
                           else
                             train();
                         }),
               std::range_error);
}

// Else one rank waits in the first model's scope, one in the second's.
TEST(Join, SaysWhereTwoModelsScopesMeet) {
  run_ranks(kBackend, 2, [](const Group& group) {
    auto first = DistributedDataParallel(Net(), {.group = group});
    auto second = DistributedDataParallel(Net(), {.group = group});
    EXPECT_THAT(message_of([&] {
                  const auto outer = first.join();
                  const auto inner = second.join();
                  for (int step = 0; step < group->rank(); ++step)
                    backward(first, *group);
                }),
                HasSubstr("are in different scopes of join()"));
  });
}

TEST(Join, RefusesASyncBatchNorm) {
  run_ranks(kBackend, 2, [](const Group& group) {
    torch::nn::Sequential net(torch::nn::Linear(6, 3),
                              torch::nn::BatchNorm1d(3));
    convert_sync_batch_norm(*net, group);
    auto model = DistributedDataParallel(net, {.group = group});
    EXPECT_THAT(message_of([&] { (void)model.join(); }),
                HasSubstr("give such a rank empty batches"));
  });
}

// The optimizers of ranks out of data have made fewer steps.
TEST(Join, IsFollowedByEqualStepsOnceOptimizersHaveOneState) {
  run_ranks(kBackend, 2, [](const Group& group) {
    for (const bool broadcasts : {false, true}) {
      auto model = DistributedDataParallel(Net(), {.group = group});
      auto optimizer = sgd_of(*model);
      const auto step = [&] {
        optimizer.zero_grad();
        backward(model, *group);
        optimizer.step();
      };
      {
        const auto scope = model.join();
        for (int i = 0; i <= group->rank(); ++i) step();
      }
      if (broadcasts) horovod::broadcast_optimizer_state(optimizer, 0, group);
      step();
      const at::Tensor own =
          torch::nn::utils::parameters_to_vector(model.parameters())
              .detach()
              .contiguous();
      at::Tensor both = at::empty({2, own.numel()});
      group->all_gather(view(own), view(both)).wait();
      EXPECT_EQ(both[0].equal(both[1]), broadcasts);
    }
  });
}

TEST(Join, IsOneScopeAtATime) {
  run_ranks(kBackend, 1, [](const Group& group) {
    auto model = DistributedDataParallel(Net(), {.group = group});
    const auto scope = model.join();
    EXPECT_THROW((void)model.join(), InvalidArgument);
  });
}

}  // namespace
}  // namespace lockstep
