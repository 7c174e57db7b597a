#include "lockstep/torch/horovod.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/adam.h>

#include "lockstep/base/error.h"
#include "src/comm/testing/run_ranks.h"
#include "src/torch/testing/parameter_bag.h"
#include "src/torch/testing/small_nets.h"

namespace lockstep::horovod {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(BroadcastParameters, GivesEveryRankTheRootsParametersAndBuffers) {
  run_ranks(kBackend, 3, [](const Group& group) {
    NetWithBatchNorm net;
    fill(net, group->rank());
    net.norm->running_mean.fill_(group->rank());
    NetWithBatchNorm expected;
    fill(expected, 1);
    broadcast_parameters(net.named_parameters(), 1, group);
    EXPECT_EQ(largest_difference(net.parameters(), expected.parameters()), 0);
    EXPECT_EQ(net.norm->running_mean[0].item<int>(), group->rank());
    broadcast_parameters(net, 1, group);
    EXPECT_EQ(net.norm->running_mean[0].item<int>(), 1);
  });
}

TEST(BroadcastParameters, PairsTensorsByTheirNames) {
  run_ranks(kBackend, 2, [](const Group& group) {
    ParameterBag bag(group->rank() == 0 ? "ab" : "ba");
    for (const char letter : {'a', 'b'})
      bag[letter].detach().fill_(letter + 100 * group->rank());
    broadcast_parameters(bag.named_parameters(), 0, group);
    EXPECT_TRUE(all_are(bag['a'], 'a') && all_are(bag['b'], 'b'));
    for (const char letter : {'a', 'b'})
      bag[letter].detach().fill_(letter + 100 * group->rank());
    broadcast_parameters(bag, 1, group);
    EXPECT_TRUE(all_are(bag['a'], 'a' + 100) && all_are(bag['b'], 'b' + 100));
  });
}

TEST(BroadcastParameters, TellsEveryRankWhichTensorDiffers) {
  run_ranks(kBackend, 3, [](const Group& group) {
    torch::OrderedDict<std::string, at::Tensor> tensors;
    tensors.insert("a", torch::ones({2}));
    tensors.insert("b", torch::ones({group->rank() == 2 ? 3 : 4}));
    const auto broadcast = [&] { broadcast_parameters(tensors, 0, group); };
    EXPECT_THROW(broadcast(), Mismatch);
    EXPECT_THAT(message_of(broadcast),
                AllOf(HasSubstr("rank 0:  b Float [4]\n"),
                      HasSubstr("rank 2:  b Float [3]\n")));
    EXPECT_NO_THROW(group->barrier().wait());
  });
}

// One step, which makes state; its learning rate and its gradients are `size`.
void step_once(const Net& net, torch::optim::Optimizer& optimizer,
               double size) {
  for (auto& group : optimizer.param_groups()) group.options().set_lr(size);
  for (const at::Tensor& parameter : net.parameters())
    parameter.mutable_grad() = torch::full_like(parameter, size);
  optimizer.step();
}

TEST(BroadcastOptimizerState, GivesEveryRankTheRootsStateAndOptions) {
  run_ranks(kBackend, 3, [](const Group& group) {
    Net net;
    torch::optim::Adam optimizer(net.parameters());
    step_once(net, optimizer, 1 + group->rank());
    broadcast_optimizer_state(optimizer, 2, group);

    Net reference;
    torch::optim::Adam whole(reference.parameters());
    step_once(reference, whole, 3);
    broadcast_parameters(reference, 0, group);
    broadcast_parameters(net, 0, group);
    EXPECT_EQ(optimizer.param_groups()[0].options().get_lr(), 3);
    fill(reference, 5);
    fill(net, 5);
    step_once(reference, whole, 1);
    step_once(net, optimizer, 1);
    EXPECT_EQ(largest_difference(net.parameters(), reference.parameters()), 0);
  });
}

TEST(BroadcastOptimizerState, TakesAwayWhatTheRootHasNot) {
  run_ranks(kBackend, 2, [](const Group& group) {
    Net net;
    torch::optim::Adam optimizer(net.parameters());
    if (group->rank() == 1) step_once(net, optimizer, 1);
    broadcast_optimizer_state(optimizer, 0, group);
    EXPECT_TRUE(optimizer.state().empty());
  });
}

TEST(Objects, ArriveAsTheyWere) {
  run_ranks(kBackend, 3, [](const Group& group) {
    c10::Dict<std::string, at::Tensor> tensors;
    tensors.insert("a", torch::arange(3));
    const c10::IValue whole(c10::ivalue::Tuple::create(
        {std::string("résumé"), std::int64_t{7}, 0.5, tensors}));
    const bool root = group->rank() == 1;
    const c10::IValue got =
        broadcast_object(root ? whole : c10::IValue(), 1, group);
    const auto& fields = got.toTuple()->elements();
    EXPECT_EQ(fields[0].toStringRef(), "résumé");
    EXPECT_EQ(fields[1].toInt(), 7);
    EXPECT_EQ(fields[2].toDouble(), 0.5);
    const auto dictionary = fields[3].toGenericDict();
    EXPECT_TRUE(dictionary.at("a").toTensor().equal(torch::arange(3)));
  });
}

TEST(Objects, AreGatheredInTheOrderOfRanks) {
  run_ranks(kBackend, 3, [](const Group& group) {
    const std::string mine(1 << (4 * group->rank()), 'x');
    const auto all = allgather_object(mine, group);
    ASSERT_EQ(all.size(), 3);
    for (int rank = 0; rank < 3; ++rank)
      EXPECT_EQ(all[rank].toStringRef().size(), 1 << (4 * rank));
  });
}

// Issue 43, point 19: one byte carried 200 MiB.
TEST(Objects, CarryOfAViewItsOwnElements) {
  run_ranks(kBackend, 2, [](const Group& group) {
    const at::Tensor row = torch::arange(1000).slice(0, group->rank(), 9);
    for (const c10::IValue& object : allgather_object(row, group))
      EXPECT_EQ(object.toTensor().storage().nbytes(),
                object.toTensor().nbytes());
    const at::Tensor got = broadcast_object(row, 1, group).toTensor();
    EXPECT_TRUE(got.equal(torch::arange(1, 9)));
    EXPECT_EQ(got.storage().nbytes() > got.nbytes(), group->rank() == 1);
  });
}

TEST(Objects, TellEveryRankOfOneThatCannotTravel) {
  run_ranks(kBackend, 2, [](const Group& group) {
    const c10::IValue bad(
        c10::make_intrusive<c10::ivalue::Future>(c10::IntType::get()));
    const bool is_bad = group->rank() == 1;
    const auto expect_told = [&](const std::function<void()>& call) {
      if (is_bad)
        EXPECT_ANY_THROW(call());
      else
        EXPECT_THAT(message_of(call), HasSubstr("of rank 1 could not"));
    };
    expect_told([&] { broadcast_object(is_bad ? bad : 0, 1, group); });
    expect_told([&] { allgather_object(is_bad ? bad : 0, group); });
    // Later calls are matched.
    EXPECT_EQ(broadcast_object(group->rank(), 1, group).toInt(), 1);
  });
}

TEST(Allreduce, GivesANewTensorThatIsTheAverageUnlessToldOtherwise) {
  run_ranks(kBackend, 3, [](const Group& group) {
    const at::Tensor mine = wave({4, 6}, group->rank()).t();
    const at::Tensor before = mine.clone();
    const at::Tensor sum =
        wave({4, 6}, 0).t() + wave({4, 6}, 1).t() + wave({4, 6}, 2).t();
    EXPECT_LE(largest_difference({allreduce(mine, ReduceOp::kAverage, group),
                                  allreduce(mine, ReduceOp::kSum, group)},
                                 {sum / 3, sum}),
              kTolerance);
    EXPECT_TRUE(mine.equal(before));
    EXPECT_TRUE(allreduce_(mine, ReduceOp::kAverage, group).is_same(mine));
    EXPECT_LE(largest_difference({mine}, {sum / 3}), kTolerance);
  });
}

// A rank's loss is the sum of what it got, times its rank plus 1.
at::Tensor weighted(const at::Tensor& got, const Group& group) {
  return (got * wave(got.sizes(), 5)).sum() * (group->rank() + 1);
}

TEST(Allreduce, ReducesTheGradientAsItReduced) {
  run_ranks(kBackend, 3, [](const Group& group) {
    for (const auto op : {ReduceOp::kAverage, ReduceOp::kSum}) {
      const at::Tensor mine = wave({2, 3}, group->rank()).requires_grad_(true);
      weighted(allreduce(mine, op, group), group).backward();
      const at::Tensor sum = wave({2, 3}, 5) * (1 + 2 + 3);
      EXPECT_LE(largest_difference({mine.grad()},
                                   {op == ReduceOp::kSum ? sum : sum / 3}),
                kTolerance);
    }
  });
}

TEST(Allreduce, HasNoGradientOfOtherOperations) {
  run_ranks(kBackend, 2, [](const Group& group) {
    const at::Tensor mine = torch::ones({2}).requires_grad_(true);
    const at::Tensor most = allreduce(mine, ReduceOp::kMax, group);
    EXPECT_THAT(message_of([&] { most.sum().backward(); }),
                HasSubstr("the result of max has no gradient"));
  });
}

TEST(Allgather, PutsRowsOfAnyNumberOneAfterTheOther) {
  run_ranks(kBackend, 3, [](const Group& group) {
    const auto rows_of = [](int rank) {
      return wave({2 * rank, 3}, rank);  // none on rank 0
    };
    const at::Tensor mine = rows_of(group->rank()).requires_grad_(true);
    const at::Tensor all = allgather(mine, group);
    EXPECT_TRUE(all.equal(torch::cat({rows_of(1), rows_of(2)})));
    weighted(all, group).backward();
    const at::Tensor sum = wave({6, 3}, 5) * (1 + 2 + 3);
    const std::int64_t first = group->rank() == 2 ? 2 : 0;
    EXPECT_LE(
        largest_difference({mine.grad()}, {sum.narrow(0, first, mine.size(0))}),
        kTolerance);
  });
}

TEST(Allgather, TellsEveryRankWhichTensorDoesNotFit) {
  run_ranks(kBackend, 2, [](const Group& group) {
    const auto gather = [&](const at::Tensor& odd) {
      return message_of([&] {
        allgather(group->rank() == 1 ? odd : torch::ones({2, 3}), group);
      });
    };
    EXPECT_THAT(gather(torch::ones({2, 4})),
                HasSubstr("rank 1:  Float rows of shape [4]\n"));
    EXPECT_THAT(gather(torch::ones({2, 3}, torch::kLong)),
                HasSubstr("rank 1:  Long rows of shape [3]\n"));
    EXPECT_THAT(gather(torch::ones({})),
                HasSubstr("rank 1:  a number without a dimension\n"));
    EXPECT_NO_THROW(group->barrier().wait());
  });
}

TEST(Horovod, KnowsOneRankWithoutALauncher) {
  init();
  const auto first = default_group();
  init();  // as often as a program likes
  EXPECT_EQ(default_group(), first);
  EXPECT_TRUE(allreduce(torch::arange(3.0)).equal(torch::arange(3.0)));
  EXPECT_TRUE(allgather(torch::arange(3.0)).equal(torch::arange(3.0)));
  EXPECT_EQ(rank(), 0);
  EXPECT_EQ(size(), 1);
  EXPECT_EQ(local_rank(), 0);
  EXPECT_EQ(local_size(), 1);
  EXPECT_EQ(broadcast_object(std::int64_t{3}).toInt(), 3);
  shutdown();
  EXPECT_FALSE(is_initialized());
}

}  // namespace
}  // namespace lockstep::horovod
