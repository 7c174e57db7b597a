// Compares a sharded optimizer that averages gradients itself with one that
// gets averages.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "lockstep/base/error.h"
#include "lockstep/torch/distributed_data_parallel.h"
#include "lockstep/torch/optimizers.h"
#include "lockstep/torch/zero_redundancy_optimizer.h"
#include "src/comm/group/group_core.h"
#include "src/comm/memory/heap.h"
#include "src/comm/testing/run_ranks.h"
#include "src/torch/testing/small_nets.h"

namespace lockstep {
namespace {

using torch::optim::AdamWOptions;
using torch::optim::SGDOptions;

// Parameters above and below the heap's size limit, some of another type, and
// one that is used only with `uses_spare`.
struct Mixed : torch::nn::Module {
  Mixed() {
    large = register_parameter("large", wave({130, 128}, 1) * 0.1);
    small = register_parameter("small", wave({128}, 2) * 0.1);
    doubles = register_parameter("doubles", wave({9}, 3).to(torch::kDouble));
    channels_last = register_parameter(
        "channels_last",
        wave({4, 3, 2, 2}, 6).contiguous(at::MemoryFormat::ChannelsLast));
    empty = register_parameter("empty", torch::zeros({0}));
    spare = register_parameter("spare", wave({5}, 4));
    spare_large = register_parameter("spare_large", wave({10'000}, 5));
  }
  at::Tensor forward(const at::Tensor& input) {
    at::Tensor loss = torch::tanh(torch::matmul(large, small) * input).sum() +
                      (doubles * doubles).sum() * input.sum() +
                      torch::sin(channels_last * input.sum()).sum() +
                      empty.sum();
    if (uses_spare) loss = loss + (spare.sum() + spare_large.sum()) * 0.01;
    return loss;
  }
  at::Tensor large, small, doubles, channels_last, empty, spare, spare_large;
  bool uses_spare = true;
};

constexpr int kSteps = 6;

at::Tensor input_of(int rank, int step) {
  return wave({130}, rank * 10 + step);
}

using Prepare = std::function<void(Mixed&, int rank, int step)>;

// One rank's training.
template <class Optimizer>
std::vector<double> train(DistributedDataParallel<Mixed>& model,
                          Optimizer& optimizer, const Prepare& prepare,
                          double max_norm) {
  std::vector<double> norms;
  for (int step = 0; step < kSteps; ++step) {
    model.zero_grad();
    prepare(*model, model.group()->rank(), step);
    model(input_of(model.group()->rank(), step)).backward();
    if (max_norm > 0) norms.push_back(optimizer.clip_grad_norm(max_norm));
    optimizer.step();
  }
  return norms;
}

void expect_equal(const Mixed& a, const Mixed& b) {
  const auto left = a.parameters();
  const auto right = b.parameters();
  for (std::size_t i = 0; i < left.size(); ++i)
    EXPECT_TRUE(torch::equal(left[i], right[i])) << "parameter " << i;
}

// Trains both ways and compares every bit.
void compare(const std::string& backend, int ranks,
             const torch::optim::OptimizerOptions& rule, const Prepare& prepare,
             double max_norm = 0) {
  run_ranks(backend, ranks, [&](const Group& group) {
    DistributedDataParallel averaging(
        Mixed(), {.group = group, .find_unused_parameters = true});
    ZeroRedundancyOptimizer plain(averaging.parameters(), rule,
                                  {.group = group});
    DistributedDataParallel local(Mixed(),
                                  {.group = group, .average_gradients = false});
    ZeroRedundancyOptimizer one_pass(
        local.parameters(), rule, {.group = group, .averages_gradients = true});
    const auto expected = train(averaging, plain, prepare, max_norm);
    EXPECT_EQ(train(local, one_pass, prepare, max_norm), expected);
    expect_equal(*averaging, *local);
  });
}

const Prepare kUseAll = [](Mixed&, int, int) {};

class OnePassRanks : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(FusedShardedStep, OnePassRanks,
                         testing::Values(1, 2, 3, 4),
                         testing::PrintToStringParamName());

TEST_P(OnePassRanks, LearnTheSameBitsAsInTwoPasses) {
  compare("shm", GetParam(), SGDOptions(0.05).momentum(0.9), kUseAll);
  compare("shm", GetParam(), AdamWOptions(0.01), kUseAll);
}

TEST_P(OnePassRanks, LeaveAloneWhatNoRankUses) {
  compare(
      "shm", GetParam(), SGDOptions(0.05).momentum(0.9).weight_decay(0.1),
      [](Mixed& model, int, int step) { model.uses_spare = step % 2 == 0; });
}

TEST_P(OnePassRanks, CountNoGradientAsZeroWhereOthersHaveOne) {
  compare("shm", GetParam(), AdamWOptions(0.01),
          [](Mixed& model, int rank, int step) {
            model.uses_spare = step == 0 || rank == 0;
          });
}

TEST_P(OnePassRanks, ClipByTheNormOfTheAverage) {
  compare("shm", GetParam(), SGDOptions(0.05).momentum(0.9), kUseAll, 0.5);
}

TEST(FusedShardedStep, LearnsTheSameWhereRanksDoNotReachEachOthersMemory) {
  compare("reference", 3, SGDOptions(0.05).momentum(0.9), kUseAll);
  compare("reference", 3, SGDOptions(0.05).momentum(0.9), kUseAll, 0.5);
}

TEST_P(OnePassRanks, FollowParametersThatAreGivenOtherMemory) {
  compare("shm", GetParam(), SGDOptions(0.05).momentum(0.9),
          [](Mixed& model, int rank, int step) {
            if (step != rank + 2) return;
            for (at::Tensor& parameter : model.parameters())
              parameter.set_data(parameter.detach().clone());
          });
}

// A step with useless gradients is skipped, and leaves no state behind.
TEST_P(OnePassRanks, ForgetAStepThatWasNotMade) {
  run_ranks("shm", GetParam(), [](const Group& group) {
    const auto weights_after = [&](bool with_bad_step) {
      DistributedDataParallel model(
          Mixed(), {.group = group, .average_gradients = false});
      ZeroRedundancyOptimizer optimizer(
          model.parameters(), SGDOptions(0.05).momentum(0.9),
          {.group = group, .averages_gradients = true});
      if (with_bad_step) {
        const auto bad = std::numeric_limits<double>::infinity();
        (model(input_of(group->rank(), 9)) * bad).backward();
        EXPECT_FALSE(std::isfinite(optimizer.clip_grad_norm(1)));
        model.zero_grad();
      }
      train(model, optimizer, kUseAll, 0.5);
      return model.parameters();
    };
    const auto expected = weights_after(false);
    const auto found = weights_after(true);
    for (std::size_t i = 0; i < found.size(); ++i)
      EXPECT_TRUE(torch::equal(found[i], expected[i])) << "parameter " << i;
  });
}

TEST(FusedShardedStep, RefusesASparseGradientOnEveryRankAlike) {
  run_ranks("shm", 2, [](const Group& group) {
    Mixed model;
    ZeroRedundancyOptimizer optimizer(
        model.parameters(), SGDOptions(0.1),
        {.group = group, .averages_gradients = true});
    if (group->rank() == 0)
      model.spare.mutable_grad() = torch::ones({5}).to_sparse();
    EXPECT_THROW(optimizer.step(), InvalidArgument);
    group->barrier().wait();
  });
}

TEST(FusedShardedStep, KeepsGradientsAsTheyWere) {
  run_ranks("shm", 2, [](const Group& group) {
    DistributedDataParallel model(Mixed(),
                                  {.group = group, .average_gradients = false});
    ZeroRedundancyOptimizer optimizer(
        model.parameters(), SGDOptions(0.1),
        {.group = group, .averages_gradients = true});
    model(input_of(group->rank(), 0)).backward();
    const at::Tensor before = model->large.grad().clone();
    optimizer.step();
    EXPECT_TRUE(torch::equal(model->large.grad(), before));
  });
}

TEST(FusedShardedStep, MovesParametersToTheHeapWithWhatTheyHold) {
  run_ranks("shm", 2, [](const Group& group) {
    Mixed model;
    const at::Tensor before = model.small.detach().clone();
    const ZeroRedundancyOptimizer optimizer(
        model.parameters(), SGDOptions(0.1),
        {.group = group, .averages_gradients = true});
    EXPECT_TRUE(torch::equal(model.small, before));
    for (const at::Tensor& parameter : model.parameters()) {
      if (parameter.numel() == 0) continue;
      EXPECT_TRUE(group->core().heap()->offset_of(parameter.const_data_ptr(),
                                                  parameter.nbytes()));
    }
  });
}

// After clipping only rank 0, whose pass is over, still has an average.
TEST(ZeroRedundancyOptimizer, AveragesAnewWhereOneRanksGradientsHaveChanged) {
  run_ranks(kBackend, 2, [](const Group& group) {
    for (const bool first : {true, false}) {
      // Each rank updates a part of it.
      const at::Tensor weight = torch::zeros({64}).requires_grad_();
      ZeroRedundancyOptimizer optimizer(
          {weight}, SGDOptions(1),
          {.group = group, .averages_gradients = true});
      if (first) weight.sum().backward();
      // A clipping of gradients that one rank no longer has counts on no rank.
      optimizer.clip_grad_norm(0.25);
      if (group->rank() == 1) weight.sum().backward();
      optimizer.step();
      EXPECT_TRUE(all_are(weight, first ? -1.5 : -0.5));
    }
  });
}

// The factor of a skipped step, for which one rank had no gradient.
TEST(ZeroRedundancyOptimizer, ForgetsAFactorOnAllRanksOrNone) {
  run_ranks(kBackend, 2, [](const Group& group) {
    for (const int with_gradient : {0, 1}) {
      const at::Tensor weight = torch::zeros({64}).requires_grad_();
      ZeroRedundancyOptimizer optimizer(
          {weight}, SGDOptions(1),
          {.group = group, .averages_gradients = true});
      if (group->rank() == with_gradient) weight.sum().backward();
      optimizer.scale_gradients(0.5);
      static_cast<torch::optim::Optimizer&>(optimizer).zero_grad();
      weight.sum().backward();
      optimizer.scale_gradients(0.25);
      optimizer.step();
      EXPECT_TRUE(all_are(weight, -0.25));
    }
  });
}

}  // namespace
}  // namespace lockstep
