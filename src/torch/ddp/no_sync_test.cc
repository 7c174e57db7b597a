// Tests of gradient accumulation: local passes, and the pass that reduces their
// sum.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>

#include "lockstep/torch/distributed_data_parallel.h"
#include "src/comm/testing/run_ranks.h"
#include "src/torch/gradient/reducer.h"
#include "src/torch/testing/recording_group.h"
#include "src/torch/testing/small_nets.h"

namespace lockstep {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

// The average over the ranks of what they accumulate in `steps`.
std::vector<at::Tensor> accumulated_by_one_process(
    int ranks, const std::vector<int>& steps) {
  Net net;
  for (const int step : steps) {
    const Share batch = share_of_batch(step, 0, 1, ranks);
    loss_of(net.forward(batch.input), batch.target).backward();
  }
  return gradients_of(net);
}

TEST(NoSync, ReducesTheSumOfAllPassesInTheFirstOneOutside) {
  for (const int ranks : {1, 2, 3, 4}) {
    const auto expected = accumulated_by_one_process(ranks, {0, 1, 2});
    run_ranks(kBackend, ranks, [&](const Group& group) {
      auto model = DistributedDataParallel(Net(), small_buckets(group));
      for (int round = 0; round < 3; ++round) {
        model->zero_grad(/*set_to_none=*/round != 1);
        {
          const auto guard = model.no_sync();
          backward(model, *group, 0);
          backward(model, *group, 1);
        }
        backward(model, *group, 2);
        EXPECT_LE(largest_difference(gradients_of(*model), expected),
                  kTolerance);
      }
    });
  }
}

TEST(NoSync, LeavesARanksOwnGradientsAloneAndTalksToNobody) {
  run_ranks(kBackend, 2, [](const Group& group) {
    const RecordingGroup recorded(group);
    auto model = DistributedDataParallel(NetWithBatchNorm(),
                                         {.group = recorded.group()});
    backward(model, *group);
    model.zero_grad();
    recorded.take_events();
    {
      const auto guard = model.no_sync();
      backward(model, *group, 1);
    }
    EXPECT_THAT(recorded.take_events(), IsEmpty());

    NetWithBatchNorm alone;
    const Share share = share_of_batch(1, group->rank(), 2, 2);
    loss_of(alone.forward(share.input), share.target).backward();
    EXPECT_LE(largest_difference(gradients_of(*model), gradients_of(alone)),
              kTolerance);
  });
}

TEST(NoSync, MayBeDifferentlyLongOnEachRank) {
  run_ranks(kBackend, 3, [](const Group& group) {
    const at::Tensor weight = wave({4}, 0).requires_grad_();
    const auto reducer = Reducer::make({{"weight", weight}}, group);
    {
      const NoSync guard(reducer->policy());
      for (int i = 0; i < group->rank(); ++i) weight.sum().backward();
    }
    weight.sum().backward();
    EXPECT_TRUE((weight.grad() == 2).all().item<bool>());  // of 1, 2 and 3
  });
}

TEST(NoSync, IsDecidedWhereTheForwardPassRuns) {
  const auto expected = gradients_of_one_process(2, 0);
  run_ranks(kBackend, 2, [&](const Group& group) {
    const RecordingGroup recorded(group);
    auto model = DistributedDataParallel(Net(), {.group = recorded.group()});
    const Share share = share_of_batch(0, group->rank(), 2, 2);
    std::optional<at::Tensor> loss;
    {
      const auto guard = model.no_sync();
      loss = loss_of(model(share.input), share.target);
    }
    recorded.take_events();
    loss->backward();
    EXPECT_THAT(recorded.take_events(), IsEmpty());

    model.zero_grad();
    loss = loss_of(model(share.input), share.target);
    {
      const auto guard = model.no_sync();
      loss->backward();
    }
    EXPECT_LE(largest_difference(gradients_of(*model), expected), kTolerance);
  });
}

TEST(NoSync, LeavesAnEarlierForwardPassOutsideAReducedOne) {
  const auto expected = gradients_of_one_process(2, 0);
  run_ranks(kBackend, 2, [&](const Group& group) {
    auto model = DistributedDataParallel(Net(), {.group = group});
    const Share share = share_of_batch(0, group->rank(), 2, 2);
    const at::Tensor loss = loss_of(model(share.input), share.target);
    {
      const auto guard = model.no_sync();
      model(share.input);
    }
    loss.backward();
    EXPECT_LE(largest_difference(gradients_of(*model), expected), kTolerance);
  });
}

TEST(NoSync, CountsWhatOnlyALocalPassHasUsed) {
  run_ranks(kBackend, 2, [](const Group& group) {
    const at::Tensor a = wave({4}, 0).requires_grad_();
    const at::Tensor b = wave({4}, 1).requires_grad_();
    const auto reducer = Reducer::make({{"a", a}, {"b", b}}, group);
    for (int step = 0; step < 2; ++step) {
      {
        const NoSync guard(reducer->policy());
        (a * (group->rank() + 1)).sum().backward();
      }
      b.sum().backward();
      EXPECT_TRUE((a.grad() == 1.5).all().item<bool>());
      EXPECT_TRUE((b.grad() == 1).all().item<bool>());
      a.mutable_grad().reset();
      b.mutable_grad().reset();
    }
  });
}

// The error when `weight` is missing in the next reduced pass.
std::string refusal_of_a_pass_without(const at::Tensor& used,
                                      const at::Tensor& weight) {
  used.mutable_grad().reset();
  weight.mutable_grad().reset();
  return message_of([&] { used.sum().backward(); });
}

TEST(NoSync, CountsNothingOfALocalPassThatThrew) {
  run_ranks(kBackend, 2, [](const Group& group) {
    const at::Tensor a = wave({4}, 0).requires_grad_();
    const at::Tensor b = wave({4}, 1).requires_grad_();
    const auto reducer = Reducer::make({{"a", a}, {"b", b}}, group);
    {
      const NoSync guard(reducer->policy());
      // Its gradient arrives before the pass throws.
      const at::Tensor inner = b * 2;
      inner.register_hook([](const at::Tensor&) {
        throw std::runtime_error("a hook of the user's");
      });
      EXPECT_THROW((inner + a).sum().backward(), std::runtime_error);
    }
    EXPECT_THAT(refusal_of_a_pass_without(b, a), HasSubstr("missing: a on"));
  });
}

TEST(NoSync, CountsNoLocalPassBeforeAReducedOneThatFailed) {
  run_ranks(kBackend, 2, [](const Group& group) {
    const at::Tensor a = wave({4}, 0).requires_grad_();
    const at::Tensor b = wave({4}, 1).requires_grad_();
    const at::Tensor c = wave({4}, 2).requires_grad_();
    const auto reducer = Reducer::make({{"a", a}, {"b", b}, {"c", c}}, group);
    {
      const NoSync guard(reducer->policy());
      a.sum().backward();
    }
    EXPECT_THAT(message_of([&] { b.sum().backward(); }),
                HasSubstr("missing: c on"));
    c.mutable_grad().reset();
    EXPECT_THAT(refusal_of_a_pass_without(b, a), HasSubstr("missing: a, c on"));
  });
}

TEST(NoSync, OutlivesAMoveOfTheWrapperAndTheWrapper) {
  const auto expected = accumulated_by_one_process(2, {0, 1});
  run_ranks(kBackend, 2, [&](const Group& group) {
    std::optional<DistributedDataParallel<Net>> moved;
    std::optional<NoSync> guard;
    {
      auto model = DistributedDataParallel(Net(), small_buckets(group));
      guard.emplace(model.no_sync());
      backward(model, *group, 0);
      moved.emplace(std::move(model));
    }
    guard.reset();
    backward(*moved, *group, 1);
    EXPECT_LE(largest_difference(gradients_of(**moved), expected), kTolerance);
    guard.emplace(moved->no_sync());
    moved.reset();
  });
}

TEST(NoSync, AbortsNothingWhenALocalPassThrows) {
  run_ranks(kBackend, 2, [](const Group& group) {
    auto model = DistributedDataParallel(Net(), small_buckets(group));
    const auto handle =
        model->first->weight.register_hook([](const at::Tensor& gradient) {
          throw std::runtime_error("a hook of the user's");
          return gradient;
        });
    if (group->rank() == 1) {
      const auto guard = model.no_sync();
      EXPECT_THROW(backward(model, *group), std::runtime_error);
    }
    model->first->weight.remove_hook(handle);
    model.zero_grad();
    backward(model, *group);
    EXPECT_LE(
        largest_difference(gradients_of(*model), gradients_of_one_process(2)),
        kTolerance);
  });
}

}  // namespace
}  // namespace lockstep
