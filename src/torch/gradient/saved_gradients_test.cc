// Tests of gradients with memory of their own, or with shared memory.
#include "src/torch/gradient/saved_gradients.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/torch/distributed_data_parallel.h"
#include "lockstep/torch/zero_redundancy_optimizer.h"
#include "src/comm/testing/run_ranks.h"
#include "src/torch/testing/small_nets.h"

namespace lockstep {
namespace {

using torch::optim::SGDOptions;

// Two parameters to which autograd may give one gradient.
struct Twins : torch::nn::Module {
  explicit Twins(std::int64_t side) {
    p = register_parameter("p", torch::zeros({side, side}));
    q = register_parameter("q", torch::zeros({side, side}));
  }
  // The gradients of both are 1, in the same memory.
  at::Tensor in_one_memory() {
    const at::Tensor ones = torch::ones({p.numel()});
    return ((p.view({-1}) + q.view({-1})) * ones).sum();
  }
  // The gradients of p are 1 and those of q 3, each in its own memory.
  at::Tensor apart() {
    const at::Tensor ones = torch::ones({p.numel()});
    return (p.view({-1}) * ones).sum() + (q.view({-1}) * ones * 3).sum();
  }
  at::Tensor forward(int rank) { return rank == 0 ? in_one_memory() : apart(); }
  at::Tensor p, q;
};

// Small gradients lie in a block, large ones where they were allocated.
constexpr std::int64_t kSides[] = {8, 256};

TEST(SavedGradients, AreTheAverageWhereOneRankHasThemInOneMemory) {
  run_ranks(kBackend, 2, [](const Group& group) {
    for (const std::int64_t side : kSides)
      for (const bool as_view : {true, false})
        for (const bool unused : {true, false}) {
          SCOPED_TRACE(side);
          auto model = DistributedDataParallel(
              Twins(side), {.group = group,
                            .find_unused_parameters = unused,
                            .gradient_as_bucket_view = as_view});
          for (int pass = 0; pass < 3; ++pass) {
            model.zero_grad();
            model.forward(group->rank()).backward();
            EXPECT_TRUE(all_are(model->p.grad(), 1));
            EXPECT_TRUE(all_are(model->q.grad(), 2));
          }
        }
  });
}

// As above; the local pass has also left both gradients in one memory.
TEST(SavedGradients, PartWhereALocalPassLeftThemInOneMemory) {
  run_ranks(kBackend, 2, [](const Group& group) {
    auto model = DistributedDataParallel(
        Twins(8), {.group = group, .gradient_as_bucket_view = false});
    {
      const auto guard = model.no_sync();
      model.forward(0).backward();
    }
    // On every rank they are the sum in the rank's own memory, whatever it
    // held.
    model.forward(1).backward();
    EXPECT_NE(model->p.grad().data_ptr(), model->q.grad().data_ptr());
    model.zero_grad();
    model.forward(group->rank()).backward();
    EXPECT_TRUE(all_are(model->p.grad(), 1));
    EXPECT_TRUE(all_are(model->q.grad(), 2));
  });
}

// A program may have all gradients in one block of its own.
TEST(SavedGradients, StayInTheCallersBlock) {
  run_ranks(kBackend, 2, [](const Group& group) {
    for (const std::int64_t side : kSides) {
      auto model = DistributedDataParallel(
          Twins(side), {.group = group, .gradient_as_bucket_view = false});
      const std::int64_t count = side * side;
      const at::Tensor block = torch::zeros({2 * count});
      model->p.mutable_grad() = block.narrow(0, 0, count).view({side, side});
      model->q.mutable_grad() =
          block.narrow(0, count, count).view({side, side});
      for (int pass = 1; pass < 4; ++pass) {
        block.zero_();
        model.forward(1 - group->rank()).backward();
        EXPECT_TRUE(all_are(block.narrow(0, 0, count), 1)) << pass;
        EXPECT_TRUE(all_are(block.narrow(0, count, count), 2)) << pass;
        EXPECT_EQ(model->p.grad().data_ptr(), block.data_ptr());
      }
    }
  });
}

// A factor in the loss may itself become the gradient.
TEST(SavedGradients, LeaveAloneWhatTheGradientWasTakenFrom) {
  run_ranks(kBackend, 2, [](const Group& group) {
    for (const std::int64_t side : kSides) {
      auto model = DistributedDataParallel(
          Twins(side), {.group = group, .gradient_as_bucket_view = false});
      const at::Tensor factor = torch::full({side * side}, group->rank() + 1.0);
      const at::Tensor loss = (model->p.view({-1}) + model->q.view({-1}));
      model.forward(0);  // begins a pass
      loss.backward(factor);
      EXPECT_TRUE(all_are(model->p.grad(), 1.5));
      EXPECT_TRUE(all_are(factor, group->rank() + 1.0));
    }
  });
}

TEST(ShardedOptimizers, AverageGradientsThatOneRankHasInOneMemory) {
  run_ranks(kBackend, 2, [](const Group& group) {
    for (const std::int64_t side : kSides)
      for (const bool clips : {true, false}) {
        auto model = DistributedDataParallel(
            Twins(side), {.group = group, .average_gradients = false});
        ZeroRedundancyOptimizer optimizer(
            model.parameters(), SGDOptions(1),
            {.group = group, .averages_gradients = true});
        for (int step = 1; step < 4; ++step) {
          model.zero_grad();
          model.forward(group->rank()).backward();
          if (clips) {
            const double count = static_cast<double>(side * side);
            EXPECT_NEAR(optimizer.clip_grad_norm(1e9), std::sqrt(5 * count),
                        1e-3);
          }
          optimizer.step();
          EXPECT_TRUE(all_are(model->p, -step));
          EXPECT_TRUE(all_are(model->q, -2 * step));
        }
      }
  });
}

// If the backend takes no lists, gradients are averaged before the update.
TEST(ShardedOptimizers, AverageThemOnOtherBackendsToo) {
  run_ranks("reference", 2, [](const Group& group) {
    auto model = DistributedDataParallel(
        Twins(8), {.group = group, .average_gradients = false});
    ZeroRedundancyOptimizer optimizer(
        model.parameters(), SGDOptions(1),
        {.group = group, .averages_gradients = true});
    model.forward(group->rank()).backward();
    optimizer.step();
    EXPECT_TRUE(all_are(model->p, -1));
    EXPECT_TRUE(all_are(model->q, -2));
  });
}

}  // namespace
}  // namespace lockstep
