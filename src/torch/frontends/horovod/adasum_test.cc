#include "src/torch/frontends/horovod/adasum.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/adam.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/torch/horovod.h"
#include "lockstep/torch/tensor_collectives.h"
#include "src/comm/testing/run_ranks.h"
#include "src/torch/testing/parameter_bag.h"
#include "src/torch/testing/small_nets.h"

namespace lockstep::horovod {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// The paper's formula on numbers of one process.
at::Tensor combined(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor product = (a * b).sum();
  return a * (1 - product / (2 * (a * a).sum())) +
         b * (1 - product / (2 * (b * b).sum()));
}

TEST(Adasum, CombinesTensorsTwoByTwoInATree) {
  run_ranks(kBackend, 4, [](const Group& group) {
    for (const auto type : {torch::kFloat, torch::kDouble}) {
      std::vector<at::Tensor> all;
      for (int rank = 0; rank < 4; ++rank)
        all.push_back(wave({3, 5}, rank).to(type).t());
      const at::Tensor& mine = all[static_cast<std::size_t>(group->rank())];
      EXPECT_LE(largest_difference({adasum(mine, group)},
                                   {combined(combined(all[0], all[1]),
                                             combined(all[2], all[3]))}),
                kTolerance);
    }
  });
}

TEST(Adasum, AddsWhatIsOrthogonalAndAveragesWhatIsParallel) {
  run_ranks(kBackend, 2, [](const Group& group) {
    const at::Tensor own_axis = torch::zeros({2});
    own_axis[group->rank()] = 3;
    EXPECT_TRUE(adasum(own_axis, group).equal(torch::full({2}, 3.0)));
    const at::Tensor same = torch::full({2}, 4.0);
    EXPECT_TRUE(adasum(same, group).equal(same));
    const at::Tensor zero_on_one = same * group->rank();
    EXPECT_TRUE(adasum(zero_on_one, group).equal(same));
  });
}

TEST(Adasum, RefusesOnEveryRankWhatItCannotCombine) {
  run_ranks(kBackend, 3, [](const Group& group) {
    EXPECT_THAT(message_of([&] { adasum(torch::ones({2}), group); }),
                HasSubstr("3 ranks are no power of two"));
    EXPECT_THAT(
        message_of([&] { adasum(torch::ones({1 + group->rank()}), group); }),
        HasSubstr("rank 1:  Float of shape [2]\n"));
  });
  run_ranks(kBackend, 2, [](const Group& group) {
    EXPECT_THAT(message_of([&] { adasum(torch::arange(2), group); }),
                HasSubstr("Long is no floating-point type"));
    EXPECT_NO_THROW(group->barrier().wait());
  });
}

// One process that makes the steps of `ranks`, each with an optimizer and
// gradients of its own, and combines what they change.
template <class MakeOptimizer>
std::vector<at::Tensor> weights_by_adasum(int ranks, int steps, int passes,
                                          const MakeOptimizer& make) {
  std::vector<Net> nets(static_cast<std::size_t>(ranks));
  std::vector<decltype(make(nets[0]))> optimizers;
  for (Net& net : nets) optimizers.push_back(make(net));
  for (int step = 0; step < steps; ++step) {
    std::vector<at::Tensor> before;
    for (const at::Tensor& tensor : nets[0].parameters())
      before.push_back(tensor.detach().clone());
    for (int rank = 0; rank < ranks; ++rank) {
      const auto index = static_cast<std::size_t>(rank);
      optimizers[index].zero_grad();
      for (int pass = 0; pass < passes; ++pass) {
        const Share share =
            share_of_batch(step * passes + pass, rank, ranks, ranks);
        loss_of(nets[index].forward(share.input), share.target).backward();
      }
      optimizers[index].step();
    }
    const torch::NoGradGuard no_grad;
    for (std::size_t i = 0; i < before.size(); ++i) {
      std::vector<at::Tensor> changes;
      for (const Net& net : nets)
        changes.push_back((net.parameters()[i] - before[i]).to(at::kDouble));
      for (std::size_t left = changes.size(); left > 1; left /= 2)
        for (std::size_t k = 0; k < left / 2; ++k)
          changes[k] = combined(changes[2 * k], changes[2 * k + 1]);
      for (Net& net : nets) net.parameters()[i].copy_(before[i] + changes[0]);
    }
  }
  return nets[0].parameters();
}

template <class MakeOptimizer>
void expect_steps_by_adasum(int ranks, int passes, Compression compression,
                            const MakeOptimizer& make) {
  const auto expected = weights_by_adasum(ranks, 4, passes, make);
  run_ranks(kBackend, ranks, [&](const Group& group) {
    Net net;
    DistributedOptimizer optimizer(make(net), net.named_parameters(),
                                   {.group = group,
                                    .compression = compression,
                                    .op = Adasum{},
                                    .backward_passes_per_step = passes});
    for (int step = 0; step < 4; ++step) {
      optimizer.zero_grad();
      for (int pass = 0; pass < passes; ++pass)
        backward(net, *group, step * passes + pass);
      optimizer.synchronize();
      optimizer.step();
    }
    const double tolerance = compression == Compression::kNone ? 1e-6 : 1e-3;
    EXPECT_LE(largest_difference(net.parameters(), expected), tolerance);
    for (const at::Tensor& tensor : net.parameters()) {
      const at::Tensor of_root = tensor.detach().clone();
      broadcast(*group, of_root, 0).wait();
      EXPECT_TRUE(of_root.equal(tensor));
    }
  });
}

TEST(AdasumOptimizer, CombinesWhatEachRanksOwnStepChanges) {
  const auto sgd = [](const Net& net) {
    return torch::optim::SGD(
        net.parameters(),
        torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(0.01));
  };
  const auto adam = [](const Net& net) {
    return torch::optim::Adam(net.parameters(),
                              torch::optim::AdamOptions(0.01));
  };
  for (const int ranks : {1, 2, 4, 8})
    expect_steps_by_adasum(ranks, 1, Compression::kNone, sgd);
  for (const int ranks : {2, 4})
    expect_steps_by_adasum(ranks, 1, Compression::kNone, adam);
  expect_steps_by_adasum(2, 3, Compression::kNone, sgd);
  expect_steps_by_adasum(4, 1, Compression::kFp16, sgd);
}

using AdasumSGD = DistributedOptimizer<torch::optim::SGD>;

// Its learning rate is 1, so that a step changes what the gradient is.
AdasumSGD by_adasum(const ParameterBag& bag, const Group& group) {
  return AdasumSGD(torch::optim::SGD(bag.parameters(), 1),
                   bag.named_parameters(), {.group = group, .op = Adasum{}});
}

TEST(AdasumOptimizer, PairsParametersByTheirNames) {
  run_ranks(kBackend, 2, [](const Group& group) {
    ParameterBag bag(group->rank() == 0 ? "ab" : "ba");
    const at::Tensor a = bag['a'].detach().clone();
    const at::Tensor b = bag['b'].detach().clone();
    auto optimizer = by_adasum(bag, group);
    (bag['a'] * 2 + bag['b'] * 8).sum().backward();
    optimizer.step();
    EXPECT_LE(largest_difference({bag['a'], bag['b']}, {a - 2, b - 8}), 1e-5);
  });
}

TEST(AdasumOptimizer, TakesTheOneChangeOfAParameterThatOneRankUses) {
  run_ranks(kBackend, 4, [](const Group& group) {
    ParameterBag bag("abc");
    std::vector<at::Tensor> expected;
    for (const char letter : {'a', 'b', 'c'})
      expected.push_back(bag[letter].detach().clone() -
                         (letter == 'c' ? 0 : 2));
    auto optimizer = by_adasum(bag, group);
    bag.forward(group->rank() == 2 ? "ab" : "a", 2).backward();
    optimizer.step();
    EXPECT_LE(largest_difference(bag.parameters(), expected), 1e-6);
  });
}

TEST(AdasumOptimizer, RefusesOnEveryRankWhatCannotWork) {
  run_ranks(kBackend, 3, [](const Group& group) {
    const ParameterBag bag;
    EXPECT_THAT(message_of([&] { by_adasum(bag, group); }),
                HasSubstr("3 ranks are no power of two"));
  });
  run_ranks(kBackend, 2, [](const Group& group) {
    const ParameterBag bag;
    const auto made = [&](const DistributedOptimizerOptions& options) {
      return message_of([&] {
        const AdasumSGD optimizer(torch::optim::SGD(bag.parameters(), 1),
                                  bag.named_parameters(), options);
      });
    };
    EXPECT_THAT(
        made({.group = group, .op = Adasum{}, .gradient_predivide_factor = 2}),
        HasSubstr("gradient_predivide_factor is part of an average"));
    const StepOp ops[] = {Adasum{}, ReduceOp::kSum};
    EXPECT_THAT(
        made({.group = group, .op = ops[group->rank()]}),
        AllOf(HasSubstr("rank 0:  op adasum"), HasSubstr("rank 1:  op sum")));
    allow_join(group);
    ParameterBag other;
    auto optimizer = by_adasum(other, group);
    const at::Tensor before = other['a'].detach().clone();
    other.forward("abc", 2).backward();
    EXPECT_THAT(
        message_of([&] {
          if (group->rank() == 0)
            optimizer.step();
          else
            join(group);
        }),
        AllOf(HasSubstr("a step with Adasum"), HasSubstr("rank 1 joined")));
    EXPECT_TRUE(other['a'].equal(before));
  });
}

TEST(AdasumOptimizer, TellsTheOthersWhereARanksOwnStepThrows) {
  run_ranks(kBackend, 2, [](const Group& group) {
    ParameterBag bag;
    auto optimizer = by_adasum(bag, group);
    bag.forward("abc", 2).backward();
    const std::string why = message_of([&] {
      optimizer.step([&]() -> at::Tensor {
        if (group->rank() == 1) throw std::runtime_error("a closure's error");
        return torch::zeros({});
      });
    });
    EXPECT_THAT(why,
                HasSubstr(group->rank() == 1 ? "a closure's error"
                                             : "rank 1 left its own step"));
  });
}

}  // namespace
}  // namespace lockstep::horovod
