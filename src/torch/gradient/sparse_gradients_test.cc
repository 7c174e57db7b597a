#include "src/torch/gradient/sparse_gradients.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/embedding.h>
#include <torch/optim/adam.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/torch/distributed_data_parallel.h"
#include "lockstep/torch/horovod.h"
#include "lockstep/torch/optimizers.h"
#include "lockstep/torch/tensor_collectives.h"
#include "src/comm/testing/run_ranks.h"
#include "src/torch/gradient/reducer.h"
#include "src/torch/testing/small_nets.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

enum class TableGradients { kDense, kSparse };

// Two tables and a layer. What a pass does not use gets no gradient.
struct WordNet : torch::nn::Module {
  explicit WordNet(TableGradients layout) {
    const bool sparse = layout == TableGradients::kSparse;
    words = register_module(
        "words", torch::nn::Embedding(
                     torch::nn::EmbeddingOptions(12, 3).sparse(sparse)));
    layer = register_module("layer", torch::nn::Linear(3, 2));
    rare = register_module(
        "rare",
        torch::nn::Embedding(torch::nn::EmbeddingOptions(5, 3).sparse(sparse)));
    fill(*this, 0);
  }
  at::Tensor forward(const at::Tensor& text, const at::Tensor& rare_text = {}) {
    at::Tensor sum = words(text).sum(0);
    if (rare_text.defined()) sum = sum + rare(rare_text).sum(0);
    return layer(sum).square().sum();
  }
  torch::nn::Embedding words{nullptr}, rare{nullptr};
  torch::nn::Linear layer{nullptr};
};

// Words of a rank in a pass: other ones in each, some of them twice, and none
// at all on rank 1 in the second.
at::Tensor text_of(int rank, int pass) {
  if (rank == 1 && pass % 3 == 1) return torch::empty({0}, torch::kLong);
  const at::Tensor some = torch::arange(2 + 2 * rank) * (pass + 1) + 3 * rank;
  return torch::cat({some, some.narrow(0, 0, 1)}).remainder(12);
}

at::Tensor dense(const at::Tensor& tensor) {
  return tensor.defined() && tensor.is_sparse() ? tensor.to_dense() : tensor;
}

std::vector<at::Tensor> dense_gradients(const torch::nn::Module& module) {
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& gradient : gradients_of(module))
    gradients.push_back(dense(gradient));
  return gradients;
}

// Whether all ranks have the bits of rank 0.
bool same_on_all(const at::Tensor& tensor, const Group& group) {
  const at::Tensor of_root = dense(tensor).clone();
  broadcast(*group, of_root, 0).wait();
  return of_root.equal(dense(tensor));
}

torch::optim::SGD plain_sgd(const torch::nn::Module& module) {
  return torch::optim::SGD(module.parameters(),
                           torch::optim::SGDOptions(0.05).momentum(0.5));
}

struct Steps {
  horovod::DistributedOptimizerOptions options{};
  int ranks = 3;
  double tolerance = kTolerance;
  std::optional<int> only_rank_with_rare{};  // empty: no rank uses that table
  const char* backend = kBackend;
};

// Two nets make the same steps, one with sparse gradients.
void expect_steps_as_dense(const Steps& steps) {
  run_ranks(steps.backend, steps.ranks, [&](const Group& group) {
    auto options = steps.options;
    options.group = group;
    WordNet sparse(TableGradients::kSparse), with_dense(TableGradients::kDense);
    horovod::DistributedOptimizer of_sparse(plain_sgd(sparse),
                                            sparse.named_parameters(), options);
    horovod::DistributedOptimizer of_dense(
        plain_sgd(with_dense), with_dense.named_parameters(), options);
    const bool uses_rare = steps.only_rank_with_rare == group->rank();
    for (int step = 0; step < 5; ++step) {
      const auto train = [&](WordNet& net, auto& optimizer) {
        optimizer.zero_grad();
        for (int pass = 0; pass < options.backward_passes_per_step; ++pass)
          net.forward(text_of(group->rank(), 7 * pass + step),
                      uses_rare ? torch::tensor({step, 2}) : at::Tensor())
              .backward();
        optimizer.synchronize();
      };
      train(sparse, of_sparse);
      train(with_dense, of_dense);
      EXPECT_TRUE(sparse.words->weight.grad().is_sparse());
      EXPECT_EQ(sparse.rare->weight.grad().defined(),
                steps.only_rank_with_rare.has_value());
      EXPECT_TRUE(same_on_all(sparse.words->weight.grad(), group));
      EXPECT_LE(largest_difference(dense_gradients(sparse),
                                   dense_gradients(with_dense)),
                steps.tolerance);
      of_sparse.step();
      of_dense.step();
    }
    EXPECT_LE(largest_difference(sparse.parameters(), with_dense.parameters()),
              steps.tolerance);
  });
}

TEST(SparseGradients, MakeTheStepsOfDenseOnes) {
  for (const int ranks : {1, 2, 3, 4})
    expect_steps_as_dense({.ranks = ranks, .tolerance = 1e-5});
}

TEST(SparseGradients, AreReducedOnOtherBackends) {
  for (const char* const backend : {"reference", "hybrid"})
    expect_steps_as_dense(
        {.tolerance = 1e-5, .only_rank_with_rare = 1, .backend = backend});
}

TEST(SparseGradients, FollowTheOptionsOfAnOptimizer) {
  expect_steps_as_dense({.options = {.op = ReduceOp::kSum}, .tolerance = 1e-4});
  expect_steps_as_dense(
      {.options = {.compression = horovod::Compression::kBf16},
       .ranks = 2,
       .tolerance = 0.1});
  expect_steps_as_dense(
      {.options = {.gradient_predivide_factor = 2}, .tolerance = 1e-5});
  expect_steps_as_dense(
      {.options = {.backward_passes_per_step = 2}, .tolerance = 1e-5});
}

TEST(SparseGradients, CountAsNoneWhereARankDoesNotUseTheTable) {
  for (const int rank : {0, 1, 2})
    for (const int passes : {1, 2})
      expect_steps_as_dense({.options = {.backward_passes_per_step = passes},
                             .tolerance = 1e-5,
                             .only_rank_with_rare = rank});
}

TEST(SparseGradients, StayWhatTheyWereWhereNoRankUsesTheTable) {
  run_ranks(kBackend, 2, [](const Group& group) {
    WordNet net(TableGradients::kSparse);
    horovod::DistributedOptimizer optimizer(
        plain_sgd(net), net.named_parameters(), {.group = group});
    const at::Tensor rows = torch::tensor({group->rank(), 2});
    for (int pass = 0; pass < 2; ++pass) {
      net.forward(text_of(0, 0), rows).backward();
      optimizer.synchronize();
    }
    const at::Tensor before = net.rare->weight.grad().clone();
    EXPECT_EQ(before.coalesce()._nnz(), 3);
    net.forward(text_of(0, 0)).backward();
    optimizer.synchronize();
    EXPECT_TRUE(net.rare->weight.grad().is_sparse());
    EXPECT_TRUE(dense(net.rare->weight.grad()).equal(dense(before)));
  });
}

TEST(SparseGradients, AddUpOverPassesThatAreReduced) {
  run_ranks(kBackend, 3, [](const Group& group) {
    WordNet sparse(TableGradients::kSparse), with_dense(TableGradients::kDense);
    for (WordNet* net : {&sparse, &with_dense}) {
      horovod::DistributedOptimizer optimizer(
          plain_sgd(*net), net->named_parameters(), {.group = group});
      for (int pass = 0; pass < 4; ++pass) {  // without zero_grad()
        net->forward(text_of(group->rank(), pass),
                     pass == 2 ? torch::tensor({1}) : at::Tensor())
            .backward();
        optimizer.synchronize();
      }
    }
    EXPECT_LE(largest_difference(dense_gradients(sparse),
                                 dense_gradients(with_dense)),
              1e-4);
  });
}

TEST(SparseGradients, MayHaveNoIndicesOnAnyRank) {
  run_ranks(kBackend, 3, [](const Group& group) {
    WordNet net(TableGradients::kSparse);
    horovod::DistributedOptimizer optimizer(
        plain_sgd(net), net.named_parameters(), {.group = group});
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      net.forward(torch::empty({0}, torch::kLong)).backward();
      EXPECT_TRUE(all_are(dense(net.words->weight.grad()), 0));
      optimizer.step();
    }
    EXPECT_EQ(net.words->weight.grad()._nnz(), 0);
  });
}

TEST(SparseGradients, MayBeDenseOnSomeRanksOrInSomePasses) {
  run_ranks(kBackend, 3, [](const Group& group) {
    at::Tensor table = wave({6, 2}, 0).requires_grad_();
    const auto reducer = Reducer::make({{"table", table}}, group);
    for (int pass = 0; pass < 6; ++pass) {
      table.mutable_grad().reset();
      // Dense everywhere at first; then sparse here and there.
      const bool sparse = pass >= 2 && (pass + group->rank()) % 3 > 0;
      const at::Tensor rows = torch::tensor({group->rank(), 3, 3});
      at::embedding(table, rows, -1, false, sparse).sum().backward();
      at::Tensor expected = torch::zeros({6, 2});
      expected.narrow(0, 0, 3).fill_(1.0 / 3);
      expected[3].fill_(2);
      EXPECT_EQ(table.grad().is_sparse(), pass >= 2);
      EXPECT_LE(largest_difference({dense(table.grad())}, {expected}),
                kTolerance);
    }
  });
}

// One net of each layout under DistributedDataParallel.
void expect_passes_as_dense(const DistributedDataParallelOptions& options) {
  run_ranks(kBackend, 3, [&](const Group& group) {
    auto of_group = options;
    of_group.group = group;
    auto sparse =
        DistributedDataParallel(WordNet(TableGradients::kSparse), of_group);
    auto with_dense =
        DistributedDataParallel(WordNet(TableGradients::kDense), of_group);
    for (int pass = 0; pass < 6; ++pass) {
      for (auto* model : {&sparse, &with_dense}) {
        if (pass % 2 == 0 || options.op == ReduceOp::kSum) model->zero_grad();
        const auto run = [&] {
          (*model)(text_of(group->rank(), pass), torch::tensor({pass % 5, 2}))
              .backward();
        };
        if (pass % 4 != 2) {
          run();
          continue;
        }
        const auto local = model->no_sync();
        run();
      }
      EXPECT_TRUE(sparse.module()->words->weight.grad().is_sparse());
      EXPECT_LE(largest_difference(dense_gradients(*sparse.module()),
                                   dense_gradients(*with_dense.module())),
                1e-4);
    }
  });
}

TEST(SparseGradients, AreReducedByDistributedDataParallel) {
  expect_passes_as_dense({});
  expect_passes_as_dense({.first_bucket_bytes = 0, .bucket_bytes = 0});
  expect_passes_as_dense({.find_unused_parameters = true});
  expect_passes_as_dense({.static_graph = true});
  expect_passes_as_dense({.gradient_as_bucket_view = false});
}

TEST(SparseGradients, LeaveTheBucketsOnceAllRanksKnowThem) {
  run_ranks(kBackend, 2, [](const Group& group) {
    struct SizesSeen final : CommHook {
      HookProgress start(const GradBucket& bucket) override {
        largest = std::max(largest, bucket.buffer.numel());
        return {all_reduce_average(bucket), {}};
      }
      std::int64_t largest = 0;
    };
    auto model = DistributedDataParallel(WordNet(TableGradients::kSparse),
                                         {.group = group});
    const auto sizes = std::make_shared<SizesSeen>();
    model.register_comm_hook(sizes);
    for (const std::int64_t elements : {36 + 15 + 8, 8, 8}) {
      sizes->largest = 0;
      model(text_of(group->rank(), 0), torch::tensor({1})).backward();
      EXPECT_EQ(sizes->largest, elements);
    }
  });
}

TEST(SparseGradients, OfAMissingTableAreReportedAsDenseOnesAre) {
  run_ranks(kBackend, 2, [](const Group& group) {
    auto model = DistributedDataParallel(WordNet(TableGradients::kSparse),
                                         {.group = group});
    for (int pass = 0; pass < 2; ++pass) {
      model.zero_grad();
      EXPECT_THAT(message_of([&] {
                    model(text_of(0, 0), group->rank() == 0 ? torch::tensor({1})
                                                            : at::Tensor())
                        .backward();
                  }),
                  HasSubstr("missing: rare.weight on rank 1"));
      model.zero_grad();
      model(text_of(0, 0), torch::tensor({group->rank()})).backward();
      const at::Tensor& gradient = model.module()->rare->weight.grad();
      EXPECT_TRUE(same_on_all(gradient, group));
      EXPECT_TRUE(gradient.coalesce().indices().equal(torch::tensor({{0, 1}})));
    }
  });
}

TEST(SparseGradients, AreZeroOnRanksWithoutData) {
  run_ranks(kBackend, 3, [](const Group& group) {
    horovod::allow_join(group);
    WordNet net(TableGradients::kSparse);
    horovod::DistributedOptimizer optimizer(
        plain_sgd(net), net.named_parameters(), {.group = group});
    for (int step = 0; step < group->rank(); ++step) {
      optimizer.zero_grad();
      net.words(torch::tensor({group->rank(), 5})).sum().backward();
      at::Tensor expected = torch::zeros({12, 3});
      for (int rank = step + 1; rank < 3; ++rank) {
        expected[rank] += 1.0 / 3;
        expected[5] += 1.0 / 3;
      }
      EXPECT_LE(
          largest_difference({dense(net.words->weight.grad())}, {expected}),
          kTolerance);
      EXPECT_TRUE(net.words->weight.grad().is_sparse());
    }
    EXPECT_EQ(horovod::join(group), 2);
    EXPECT_EQ(net.words->weight.grad().defined(), group->rank() == 2);
  });
  run_ranks(kBackend, 3, [](const Group& group) {
    auto model = DistributedDataParallel(WordNet(TableGradients::kSparse),
                                         {.group = group});
    const auto scope = model.join();
    for (int step = 0; step < group->rank(); ++step) {
      model.zero_grad();
      // Row 1 of rank 1, while it has data, and row 2 of rank 2.
      const at::Tensor words = torch::tensor({group->rank()});
      model(words, torch::tensor({0})).backward();
      const at::Tensor rows =
          dense(model.module()->words->weight.grad()).abs().sum(1);
      EXPECT_EQ(rows[1].item<double>() > 0, step < 1);
      EXPECT_GT(rows[2].item<double>(), 0);
    }
  });
}

TEST(SparseGradients, AreRefusedByOptimizersThatCannotTakeThem) {
  run_ranks(kBackend, 2, [](const Group& group) {
    WordNet net(TableGradients::kSparse);
    horovod::DistributedOptimizer adam(torch::optim::Adam(net.parameters()),
                                       net.named_parameters(),
                                       {.group = group});
    net.forward(text_of(group->rank(), 0)).backward();
    EXPECT_THAT(message_of([&] { adam.step(); }),
                HasSubstr("Adam does not support sparse gradients"));
  });
  run_ranks(kBackend, 2, [](const Group& group) {
    WordNet net(TableGradients::kSparse);
    horovod::DistributedOptimizer fused(
        FusedSGD(net.parameters(), torch::optim::SGDOptions(0.1)),
        net.named_parameters(), {.group = group});
    net.forward(text_of(group->rank(), 0)).backward();
    EXPECT_THAT(message_of([&] { fused.step(); }),
                HasSubstr("its gradient is sparse"));
  });
}

// A sum in 16 bits would overflow in float16, and stop at 256 in bfloat16.
TEST(SparseGradients, OfSixteenBitsAreAveragedBeforeTheyAreRounded) {
  constexpr int kRanks = 4;
  const auto train = [&](at::ScalarType type, float of_rank, float common) {
    run_ranks(kBackend, kRanks, [&](const Group& group) {
      torch::nn::Embedding table(
          torch::nn::EmbeddingOptions(6, 2).sparse(true));
      table->to(type);
      auto model = DistributedDataParallel(table, {.group = group});
      for (int pass = 0; pass < 3; ++pass) {
        model.zero_grad();
        // Row 1 on every rank, and a row of the rank's own.
        const at::Tensor out = model(torch::tensor({1, 2 + group->rank()}));
        const at::Tensor factor =
            torch::tensor({common, of_rank}).to(type).view({2, 1});
        (out * factor).sum().backward();
        const at::Tensor gradient = table->weight.grad();
        EXPECT_EQ(gradient.is_sparse(), true) << pass;
        EXPECT_EQ(gradient.scalar_type(), type);
        const at::Tensor rows = gradient.to_dense().to(at::kFloat);
        EXPECT_EQ(rows[1][0].item<float>(), common) << type << pass;
        EXPECT_EQ(rows[2][0].item<float>(), of_rank / kRanks) << type << pass;
      }
    });
  };
  train(at::kHalf, 4, 30000);
  train(at::kBFloat16, 4, 256);
}

}  // namespace
}  // namespace lockstep
