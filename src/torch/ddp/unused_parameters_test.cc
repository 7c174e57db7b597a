// Tests of find_unused_parameters: passes that leave parameters unused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/torch/distributed_data_parallel.h"
#include "src/comm/testing/run_ranks.h"
#include "src/torch/testing/parameter_bag.h"
#include "src/torch/testing/recording_group.h"

namespace lockstep {
namespace {

using testing::ElementsAre;
using testing::IsNan;

ReducerOptions finding_unused(std::size_t bucket_bytes) {
  return {.first_bucket_bytes = bucket_bytes,
          .bucket_bytes = bucket_bytes,
          .find_unused_parameters = true};
}

TEST(UnusedParameters, AreAveragedOverAllRanksWhereSomeUsedThem) {
  for (const std::size_t bucket_bytes : {0, 32, 1 << 20})
    for (const int ranks : {2, 3, 4})
      run_ranks(kBackend, ranks, [&](const Group& group) {
        ParameterBag bag;
        const auto reducer = Reducer::make(named_parameters_of(bag), group,
                                           finding_unused(bucket_bytes));
        const int rank = group->rank();
        for (int step = 0; step < 3; ++step) {
          bag.zero_grad();
          bag.forward(rank == 0 ? "abc" : "cb", rank + 1).backward();
          const double all = (group->size() + 1) / 2.0;
          const double of_rank_zero = 1.0 / group->size();
          const auto gradients = bag.gradients();
          EXPECT_DOUBLE_EQ(gradients[0], static_cast<float>(of_rank_zero));
          EXPECT_DOUBLE_EQ(gradients[1], all);
          EXPECT_DOUBLE_EQ(gradients[2], all);
        }
      });
}

TEST(UnusedParameters, OnAllRanksKeepNoGradientWhereThereWasNone) {
  run_ranks(kBackend, 3, [](const Group& group) {
    ParameterBag bag;
    const auto reducer =
        Reducer::make(named_parameters_of(bag), group, finding_unused(32));
    for (int step = 0; step < 3; ++step) {
      bag.zero_grad();
      bag.forward("ca", group->rank()).backward();
      EXPECT_THAT(bag.gradients(), ElementsAre(1, IsNan(), 1));
    }
  });
}

TEST(UnusedParameters, OnAllRanksKeepTheirGradientToTheBit) {
  run_ranks(kBackend, 3, [](const Group& group) {
    ParameterBag bag;
    const auto reducer =
        Reducer::make(named_parameters_of(bag), group, finding_unused(0));
    bag.forward("abc", 0.1).backward();
    const at::Tensor b = bag['b'].grad();
    const at::Tensor values = b.clone();
    bag.forward("ca", group->rank()).backward();
    EXPECT_TRUE(bag['b'].grad().is_same(b));
    EXPECT_TRUE(b.equal(values));
    bag.forward("b", 2).backward();
    EXPECT_NEAR(bag.gradients()[1], 2.1, kTolerance);
  });
}

TEST(UnusedParameters, OfOneRankTakePartWithWhatTheyHaveAccumulated) {
  run_ranks(kBackend, 2, [](const Group& group) {
    ParameterBag bag;
    const auto reducer =
        Reducer::make(named_parameters_of(bag), group, finding_unused(0));
    bag.forward("abc", 1).backward();
    bag.forward(group->rank() == 0 ? "abc" : "bc", 4).backward();
    EXPECT_THAT(bag.gradients(), ElementsAre(3, 5, 5));
  });
}

TEST(UnusedParameters, MayBeOthersInEachStepAndOnEachRank) {
  const std::vector<std::string> graphs{"abc", "c", "ab", "b", "ca", "bca"};
  run_ranks(kBackend, 2, [&](const Group& group) {
    ParameterBag bag;
    const auto reducer =
        Reducer::make(named_parameters_of(bag), group, finding_unused(0));
    for (std::size_t step = 0; step < 12; ++step) {
      const auto graph_of = [&](std::size_t rank) {
        return graphs[(step * (rank + 1) + rank) % graphs.size()];
      };
      bag.zero_grad();
      const auto rank = static_cast<std::size_t>(group->rank());
      bag.forward(graph_of(rank), 2).backward();
      const auto gradients = bag.gradients();
      for (std::size_t i = 0; i < 3; ++i) {
        int users = 0;
        for (const std::size_t r : {0, 1})
          users += graph_of(r).find("abc"[i]) != std::string::npos ? 1 : 0;
        if (users == 0)
          EXPECT_THAT(gradients[i], IsNan()) << step;
        else
          EXPECT_EQ(gradients[i], users) << step;
      }
    }
  });
}

TEST(UnusedParameters, CostNothingInAPassThatUsesAll) {
  run_ranks(kBackend, 2, [](const Group& group) {
    const RecordingGroup recorded(group);
    ParameterBag bag;
    const auto reducer = Reducer::make(named_parameters_of(bag),
                                       recorded.group(), finding_unused(0));
    bag.forward("abc", 1).backward();
    recorded.take_events();
    bag.forward("abc", 1).backward();
    EXPECT_THAT(recorded.take_events(),
                ElementsAre("all_reduce", "all_reduce", "all_reduce"));
  });
}

// Parameters unused in the first pass do not delay later passes.
TEST(UnusedParameters, AreReducedLast) {
  run_ranks(kBackend, 2, [](const Group& group) {
    const RecordingGroup recorded(group);
    ParameterBag bag;
    const auto reducer = Reducer::make(named_parameters_of(bag),
                                       recorded.group(), finding_unused(0));
    bag['a'].register_hook([&](const at::Tensor&) { recorded.record("a"); });
    bag.forward("ba", 1).backward();  // without c, which was expected first
    recorded.take_events();
    bag.forward("ba", 1).backward();
    EXPECT_THAT(recorded.take_events(),
                ElementsAre("all_reduce", "a", "all_reduce", "all_reduce",
                            "all_gather"));
  });
}

// Like models with experts: each rank uses another branch.
TEST(UnusedParameters, MakeAModelWithBranchesLearnTheSameOnAllRanks) {
  struct Branches : torch::nn::Module {
    Branches() {
      for (const char* name : {"left", "right"})
        register_module(name, torch::nn::Linear(6, 3));
      fill(*this, 0);
    }
    at::Tensor forward(const at::Tensor& input, int branch) {
      const auto layer = std::dynamic_pointer_cast<torch::nn::LinearImpl>(
          children()[static_cast<std::size_t>(branch)]);
      return layer->forward(input);
    }
  };
  std::vector<std::vector<at::Tensor>> weights(2);
  run_ranks(kBackend, 2, [&](const Group& group) {
    auto model = DistributedDataParallel(
        Branches(), {.group = group, .find_unused_parameters = true});
    torch::optim::SGD optimizer(model.parameters(),
                                torch::optim::SGDOptions(0.1).momentum(0.9));
    for (int step = 0; step < 6; ++step) {
      const Share share = share_of_batch(step, group->rank(), 2, 2);
      const int branch = (step / 2 + step * group->rank()) % 2;
      optimizer.zero_grad();
      loss_of(model(share.input, branch), share.target).backward();
      optimizer.step();
    }
    weights[static_cast<std::size_t>(group->rank())] = model.parameters();
  });
  EXPECT_EQ(largest_difference(weights[0], weights[1]), 0);
}

}  // namespace
}  // namespace lockstep
