#include "lockstep/torch/horovod.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/adam.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/testing/run_ranks.h"
#include "lockstep/torch/testing/parameter_bag.h"
#include "lockstep/torch/testing/small_nets.h"

namespace lockstep {
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

TEST(Horovod, KnowsOneRankWithoutALauncher) {
  init();
  EXPECT_EQ(rank(), 0);
  EXPECT_EQ(size(), 1);
  EXPECT_EQ(local_rank(), 0);
  EXPECT_EQ(local_size(), 1);
  EXPECT_EQ(broadcast_object(std::int64_t{3}).toInt(), 3);
  shutdown();
  EXPECT_FALSE(is_initialized());
}

}  // namespace
}  // namespace lockstep
