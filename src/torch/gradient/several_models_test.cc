// Tests of several models under DistributedDataParallel in one program, in one
// group or in separate groups.
#include <gtest/gtest.h>

#include "lockstep/comm/groups.h"
#include "lockstep/torch/distributed_data_parallel.h"
#include "src/comm/testing/run_ranks.h"
#include "src/torch/testing/small_nets.h"

namespace lockstep {
namespace {

using Layer = torch::nn::Linear;

Layer layer_with(double phase) {
  Layer layer(6, 6);
  fill(*layer, phase);
  return layer;
}

// Two models in a row, with gradients through both.
template <class First, class Second>
at::Tensor loss_through(First& first, Second& second, const Share& share) {
  return loss_of(
      second.forward(torch::tanh(first.forward(share.input))).narrow(1, 0, 3),
      share.target);
}

std::vector<at::Tensor> gradients_of_both(const torch::nn::Module& first,
                                          const torch::nn::Module& second) {
  auto gradients = gradients_of(first);
  for (const at::Tensor& gradient : gradients_of(second))
    gradients.push_back(gradient);
  return gradients;
}

std::vector<at::Tensor> expected_of_both(int shares, int step) {
  Layer first = layer_with(1), second = layer_with(2);
  loss_through(*first, *second, share_of_batch(step, 0, 1, shares)).backward();
  return gradients_of_both(*first, *second);
}

TEST(SeveralModels, ShareABackwardPassAndAGroup) {
  for (const int ranks : {2, 3, 4})
    run_ranks(kBackend, ranks, [&](const Group& group) {
      auto first = DistributedDataParallel(layer_with(1), small_buckets(group));
      auto second =
          DistributedDataParallel(layer_with(2), small_buckets(group));
      for (int step = 0; step < 3; ++step) {
        first.zero_grad();
        second.zero_grad();
        loss_through(first, second,
                     share_of_batch(step, group->rank(), ranks, ranks))
            .backward();
        EXPECT_LE(largest_difference(gradients_of_both(*first, *second),
                                     expected_of_both(ranks, step)),
                  kTolerance);
      }
    });
}

TEST(SeveralModels, ShareABackwardPassInGroupsOfTheirOwn) {
  run_ranks(kBackend, 2, [](const Group& group) {
    const auto other = new_group(*group, std::vector<int>{0, 1});
    auto first = DistributedDataParallel(layer_with(1), small_buckets(group));
    auto second = DistributedDataParallel(layer_with(2), small_buckets(other));
    for (int step = 0; step < 3; ++step) {
      first.zero_grad();
      second.zero_grad();
      loss_through(first, second, share_of_batch(step, group->rank(), 2, 2))
          .backward();
      EXPECT_LE(largest_difference(gradients_of_both(*first, *second),
                                   expected_of_both(2, step)),
                kTolerance);
    }
  });
}

// The one model's passes stay local while the other's are reduced.
TEST(SeveralModels, HaveScopesOfTheirOwn) {
  run_ranks(kBackend, 2, [](const Group& group) {
    auto first = DistributedDataParallel(layer_with(1), small_buckets(group));
    auto second = DistributedDataParallel(layer_with(2), small_buckets(group));
    const auto pass = [&] {
      loss_through(first, second, share_of_batch(0, group->rank(), 2, 2))
          .backward();
    };
    const auto expected = expected_of_both(2, 0);
    {
      const auto guard = first.no_sync();
      pass();
    }
    EXPECT_LE(largest_difference(gradients_of(*second),
                                 {expected.end() - 2, expected.end()}),
              kTolerance);
    second.zero_grad();
    pass();
    const auto gradients = gradients_of(*first);
    EXPECT_LE(largest_difference({gradients[0] / 2, gradients[1] / 2},
                                 {expected.begin(), expected.begin() + 2}),
              kTolerance);
  });
}

TEST(SeveralModels, TrainInDisjointGroups) {
  run_ranks(kBackend, 4, [](const Group& group) {
    const auto low = new_group(*group, std::vector<int>{0, 1});
    const auto high = new_group(*group, std::vector<int>{3, 2});
    const auto& mine = low->is_member() ? low : high;
    auto model = DistributedDataParallel(Net(), small_buckets(mine));
    for (int step = 0; step < 3; ++step) {
      model.zero_grad();
      backward(model, *mine, step);
      EXPECT_LE(largest_difference(gradients_of(*model),
                                   gradients_of_one_process(2, step)),
                kTolerance);
    }
  });
}

TEST(SeveralModels, MayMoveBetweenPasses) {
  run_ranks(kBackend, 2, [](const Group& group) {
    std::vector<DistributedDataParallel<Net>> models;
    for (int step = 0; step < 3; ++step) {
      models.emplace_back(Net(), small_buckets(group));  // moves the others
      for (auto& model : models) {
        model.zero_grad();
        backward(model, *group, step);
        EXPECT_LE(largest_difference(gradients_of(*model),
                                     gradients_of_one_process(2, step)),
                  kTolerance);
      }
    }
  });
}

TEST(SeveralModels, GoOneAfterTheOther) {
  run_ranks(kBackend, 2, [](const Group& group) {
    auto net = std::make_shared<Net>();
    for (int round = 0; round < 3; ++round) {
      auto model = DistributedDataParallel(net, small_buckets(group));
      net->zero_grad();
      backward(model, *group);
      EXPECT_LE(
          largest_difference(gradients_of(*net), gradients_of_one_process(2)),
          kTolerance);
    }
  });
}

}  // namespace
}  // namespace lockstep
