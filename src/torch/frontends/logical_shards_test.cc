#include "lockstep/torch/logical_shards.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/embedding.h>

#include <array>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/torch/distributed_data_parallel.h"
#include "lockstep/torch/optimizers.h"
#include "lockstep/torch/zero_redundancy_optimizer.h"
#include "src/base/testing/error_text.h"
#include "src/comm/testing/run_ranks.h"
#include "src/torch/testing/formula_parameters.h"
#include "src/torch/testing/small_nets.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using torch::optim::SGDOptions;

constexpr int kShards = 8;

// Batch normalisation, dropout, and a layer whose gradient is allocated in the
// heap.
struct WideNet : torch::nn::Module {
  WideNet() { fill(*this, 0); }
  at::Tensor forward(const at::Tensor& input, std::uint64_t seed) {
    const auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
    at::Tensor x = torch::tanh(norm(wide(input)));
    x = x * at::empty_like(x).bernoulli_(0.8, generator);
    return head(x);
  }
  torch::nn::Linear wide = register_module("wide", torch::nn::Linear(6, 2048));
  torch::nn::BatchNorm1d norm =
      register_module("norm", torch::nn::BatchNorm1d(2048));
  torch::nn::Linear head = register_module("head", torch::nn::Linear(2048, 3));
};

std::vector<at::Tensor> state_of(const torch::nn::Module& module) {
  std::vector<at::Tensor> state = copies_of(module.parameters());
  for (const at::Tensor& buffer : module.buffers())
    state.push_back(buffer.clone());
  return state;
}

using MakeOptimizer = std::function<std::unique_ptr<torch::optim::Optimizer>(
    const std::vector<at::Tensor>&, const Group&)>;

std::unique_ptr<torch::optim::Optimizer> fused(
    const std::vector<at::Tensor>& parameters, const Group& /*group*/) {
  return std::make_unique<FusedSGD>(parameters, SGDOptions(0.1).momentum(0.9));
}

std::unique_ptr<torch::optim::Optimizer> sharded(
    const std::vector<at::Tensor>& parameters, const Group& group) {
  return std::make_unique<ZeroRedundancyOptimizer>(
      parameters, SGDOptions(0.1).momentum(0.9),
      ZeroRedundancyOptimizerOptions{.group = group});
}

// The state after some steps, which must be the same on all ranks.
std::vector<at::Tensor> train_on(int ranks, const MakeOptimizer& make,
                                 at::ScalarType type = at::kFloat) {
  std::vector<std::vector<at::Tensor>> states(static_cast<std::size_t>(ranks));
  run_ranks(kBackend, ranks, [&](const Group& group) {
    const auto model = std::make_shared<WideNet>();
    model->to(type);
    if (group->rank() > 0) fill(*model, 7);  // rank 0's count
    LogicalShards shards(model, {.group = group, .count = kShards, .seed = 3});
    const auto optimizer = make(model->parameters(), group);
    for (int step = 0; step < 4; ++step) {
      shards.run([&](const LogicalShard& shard) {
        const Share share = share_of_batch(step, shard.index, kShards, kShards);
        const at::Tensor output =
            model->forward(share.input.to(type), shard.seed);
        loss_of(output.to(at::kFloat), share.target).backward();
      });
      optimizer->step();
    }
    states[static_cast<std::size_t>(group->rank())] = state_of(*model);
  });
  for (const auto& state : states) EXPECT_TRUE(are_equal(state, states[0]));
  return states[0];
}

TEST(LogicalShards, GiveTheSameBitsOnAnyNumberOfRanks) {
  at::set_num_threads(1);
  const auto alone = train_on(1, fused);
  EXPECT_FALSE(are_equal(alone, state_of(WideNet())));
  for (const int ranks : {2, 4, 8})
    EXPECT_TRUE(are_equal(alone, train_on(ranks, fused))) << ranks;
  for (const int ranks : {1, 2, 4})
    EXPECT_TRUE(are_equal(alone, train_on(ranks, sharded))) << ranks;
}

TEST(LogicalShards, GiveTheSameBitsWithWeightsOf16Bits) {
  at::set_num_threads(1);
  const auto alone = train_on(1, fused, at::kBFloat16);
  for (const int ranks : {2, 4})
    EXPECT_TRUE(are_equal(alone, train_on(ranks, fused, at::kBFloat16)))
        << ranks;
}

// A module of one number, whose loss in shard s has the gradient gradients[s].
struct Number : torch::nn::Module {
  at::Tensor weight = register_parameter("weight", at::ones({1}));
};

TEST(LogicalShards, AreAddedInABalancedTree) {
  constexpr std::array<float, kShards> kGradients{3e8F,  20, -3e8F, 1,
                                                  1e-3F, 5,  0.25F, 7};
  const auto& g = kGradients;
  const float tree =
      ((g[0] + g[1]) + (g[2] + g[3])) + ((g[4] + g[5]) + (g[6] + g[7]));
  float row = 0;
  for (const float gradient : g) row += gradient;
  ASSERT_NE(tree, row);
  for (const int ranks : {1, 2, 4, 8})
    run_ranks(kBackend, ranks, [&](const Group& group) {
      const auto module = std::make_shared<Number>();
      LogicalShards shards(module, {.group = group, .count = kShards});
      shards.run([&](const LogicalShard& shard) {
        (module->weight * g.at(static_cast<std::size_t>(shard.index)))
            .backward();
      });
      EXPECT_EQ(module->weight.grad().item<float>(), tree / kShards);
    });
}

TEST(LogicalShards, AverageWhatOneProcessComputesFromTheWholeBatch) {
  const auto expected = gradients_of_one_process(4);
  for (const int ranks : {1, 2, 4})
    run_ranks(kBackend, ranks, [&](const Group& group) {
      const auto net = std::make_shared<Net>();
      LogicalShards shards(net, {.group = group, .count = 4});
      EXPECT_EQ(shards.own_count(), 4 / ranks);
      EXPECT_EQ(shards.first(), group->rank() * 4 / ranks);
      for (int again = 0; again < 2; ++again) {
        shards.run([&](const LogicalShard& shard) {
          const Share share = share_of_batch(0, shard.index, 4, 4);
          loss_of(net->forward(share.input), share.target).backward();
        });
        EXPECT_LT(largest_difference(gradients_of(*net), expected), kTolerance);
      }
    });
}

struct WithBuffers : Number {
  at::Tensor mean = register_buffer("mean", at::ones({2}));
  at::Tensor count = register_buffer("count", at::ones({1}, at::kLong));
  at::Tensor seen = register_buffer("seen", at::zeros({1}, at::kBool));
  at::Tensor least = register_buffer(
      "least", at::full({1}, std::numeric_limits<float>::lowest()));
};

TEST(LogicalShards, StartFromTheSameBuffersAndAverageWhatTheyBecome) {
  for (const int ranks : {1, 2, 4})
    run_ranks(kBackend, ranks, [&](const Group& group) {
      const auto module = std::make_shared<WithBuffers>();
      LogicalShards shards(module, {.group = group, .count = 4});
      shards.run([&](const LogicalShard& shard) {
        EXPECT_EQ(module->mean[0].item<double>(), 1);
        EXPECT_EQ(module->count.item<std::int64_t>(), 1);
        module->mean.add_(shard.index);
        module->count.add_(shard.index == 2 ? 5 : 1);
        if (shard.index == 1) module->seen.fill_(true);
        module->weight.sum().backward();
      });
      EXPECT_EQ(module->mean[1].item<double>(), 1 + 1.5);
      EXPECT_EQ(module->count.item<std::int64_t>(), 6);
      EXPECT_TRUE(module->seen.item<bool>());
      EXPECT_EQ(module->least.item<float>(),
                std::numeric_limits<float>::lowest());
    });
}

TEST(LogicalShards, StartFromThemAgainWhereAPassHasThrown) {
  run_ranks(kBackend, 1, [&](const Group& group) {
    const auto module = std::make_shared<WithBuffers>();
    LogicalShards shards(module, {.group = group, .count = 4});
    bool throws = true;
    const auto run = [&] {
      shards.run([&](const LogicalShard& shard) {
        EXPECT_EQ(module->count.item<std::int64_t>(), 1);
        module->count.add_(1);
        if (throws && shard.index == 2) throw 42;
        module->weight.sum().backward();
      });
    };
    EXPECT_THROW(run(), int);
    throws = false;
    run();
    EXPECT_EQ(shards.step(), 1);
    EXPECT_EQ(module->count.item<std::int64_t>(), 2);
  });
}

TEST(LogicalShards, CountAParameterThatAShardDoesNotUseAsZero) {
  for (const int ranks : {1, 2})
    run_ranks(kBackend, ranks, [&](const Group& group) {
      const auto net = std::make_shared<Net>();
      LogicalShards shards(net, {.group = group, .count = 2});
      net->third->bias.mutable_grad() = at::ones({3});
      shards.run([&](const LogicalShard& shard) {
        (shard.index == 1 ? net->first->bias : net->second->bias)
            .sum()
            .backward();
      });
      EXPECT_EQ(net->first->bias.grad()[0].item<double>(), 0.5);
      EXPECT_EQ(net->second->bias.grad()[0].item<double>(), 0.5);
      EXPECT_FALSE(net->third->bias.grad().defined());
    });
}

struct TwoTerms : torch::nn::Module {
  at::Tensor row = register_parameter("row", at::ones({6}));
  at::Tensor table = register_parameter("table", at::ones({2, 3}));
};

// Autograd gives both terms of a sum the same gradient memory if they are
// views.
TEST(LogicalShards, KeepGradientsApartThatShareMemory) {
  run_ranks(kBackend, 1, [](const Group& group) {
    const auto module = std::make_shared<TwoTerms>();
    LogicalShards shards(module, {.group = group, .count = 4});
    const at::Tensor factors = wave({2, 3}, 1);
    bool shared = false;
    shards.run([&](const LogicalShard& shard) {
      ((module->row.view({2, 3}) + module->table.view({2, 3})) * factors *
       shard.index)
          .sum()
          .backward();
      shared = shared || module->row.grad().const_data_ptr() ==
                             module->table.grad().const_data_ptr();
    });
    EXPECT_TRUE(shared);
    EXPECT_LT(largest_difference({module->table.grad()}, {factors * 1.5}),
              kTolerance);
    EXPECT_LT(
        largest_difference({module->row.grad().view({2, 3})}, {factors * 1.5}),
        kTolerance);
  });
}

TEST(LogicalShards, HaveASeedOfTheirOwnInEveryStep) {
  run_ranks(kBackend, 1, [](const Group& group) {
    const auto seeds = [&](std::uint64_t seed, int first_step) {
      const auto module = std::make_shared<Number>();
      LogicalShards shards(module,
                           {.group = group, .count = kShards, .seed = seed});
      shards.set_step(first_step);
      std::vector<std::uint64_t> all;
      for (int step = first_step; step < 3; ++step) {
        EXPECT_EQ(shards.step(), step);
        shards.run([&](const LogicalShard& shard) {
          all.push_back(shard.seed);
          module->weight.sum().backward();
        });
      }
      return all;
    };
    const auto all = seeds(1, 0);
    const auto other = seeds(2, 0);
    std::set<std::uint64_t> distinct(all.begin(), all.end());
    distinct.insert(other.begin(), other.end());
    EXPECT_EQ(distinct.size(), 2 * 3 * kShards);
    EXPECT_EQ(seeds(1, 2), std::vector(all.end() - kShards, all.end()));
  });
}

TEST(LogicalShards, RefuseASparseGradientOfOneRankOnEveryRank) {
  run_ranks(kBackend, 2, [](const Group& group) {
    torch::nn::Embedding table(
        torch::nn::EmbeddingOptions(4, 2).sparse(group->rank() == 1));
    LogicalShards shards(table.ptr(), {.group = group, .count = 2});
    const auto text = error_text([&] {
      shards.run([&](const LogicalShard&) {
        table(at::ones({1}, at::kLong)).sum().backward();
      });
    });
    EXPECT_THAT(text, HasSubstr("the sparse gradient of weight"));
    group->barrier().wait();  // the group still works
  });
}

TEST(LogicalShards, EndTheGroupWhenAPassThrowsOnOneRank) {
  run_ranks(kBackend, 2, [](const Group& group) {
    const auto module = std::make_shared<Number>();
    LogicalShards shards(module, {.group = group, .count = 4});
    const auto text = error_text([&] {
      shards.run([&](const LogicalShard& shard) {
        if (shard.index == 3) throw InvalidArgument("no data");
        module->weight.sum().backward();
      });
    });
    if (group->rank() == 1)
      EXPECT_EQ(text, "no data");
    else
      EXPECT_THAT(text, AllOf(HasSubstr("logical shard 3 on rank 1 threw"),
                              HasSubstr("no data")));
  });
}

TEST(LogicalShards, EndTheGroupWhateverAPassThrows) {
  run_ranks(kBackend, 2, [](const Group& group) {
    const auto module = std::make_shared<Number>();
    LogicalShards shards(module, {.group = group, .count = 2});
    const auto run = [&] {
      shards.run([&](const LogicalShard& shard) {
        if (shard.index == 1) throw 42;
        module->weight.sum().backward();
      });
    };
    if (group->rank() == 1)
      EXPECT_THROW(run(), int);
    else
      EXPECT_THAT(error_text(run), HasSubstr("logical shard 1 on rank 1"));
  });
}

TEST(LogicalShards, AreRefusedWhereTheyMakeNoTree) {
  for (const auto& sizes : std::vector<std::pair<int, int>>{
           {6, 2}, {3, 3}, {6, 3}, {2, 4}, {0, 1}, {-4, 1}})
    EXPECT_THAT(
        error_text([&] { check_logical_shards(sizes.first, sizes.second); }),
        HasSubstr("do not form a balanced tree"))
        << sizes.first << " on " << sizes.second;
  for (const int count : {4, 8, 64}) check_logical_shards(count, 4);
}

TEST(LogicalShards, AreRefusedOnEveryRankWhenRanksWantOthers) {
  run_ranks(kBackend, 2, [](const Group& group) {
    const auto net = std::make_shared<Net>();
    const int rank = group->rank();
    EXPECT_THAT(error_text([&] {
                  LogicalShards(net, {.group = group, .count = 2 + 2 * rank});
                }),
                HasSubstr("different options of logical shards"));
    const auto seed = static_cast<std::uint64_t>(rank);
    EXPECT_THAT(error_text([&] {
                  LogicalShards(net,
                                {.group = group, .count = 2, .seed = seed});
                }),
                HasSubstr("different options of logical shards"));
  });
}

TEST(LogicalShards, AreRefusedWhereGradientsAreAveragedAlready) {
  run_ranks(kBackend, 2, [](const Group& group) {
    const DistributedDataParallel<Net> wrapped(std::make_shared<Net>(),
                                               {.group = group});
    EXPECT_THAT(error_text([&] {
                  LogicalShards(wrapped.module(), {.group = group, .count = 2});
                }),
                HasSubstr("is reduced by another"));
    EXPECT_THAT(error_text([&] {
                  LogicalShards(std::make_shared<torch::nn::Module>(),
                                {.group = group, .count = 2});
                }),
                HasSubstr("no parameter of the module"));
  });
}

}  // namespace
}  // namespace lockstep
