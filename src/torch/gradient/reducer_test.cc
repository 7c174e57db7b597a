#include "src/torch/gradient/reducer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>

#include "lockstep/base/error.h"
#include "src/comm/testing/run_ranks.h"
#include "src/torch/testing/parameter_bag.h"
#include "src/torch/testing/recording_group.h"
#include "src/torch/testing/small_nets.h"

namespace lockstep {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(Reducer, ReducesBucketsBeforeBackwardHasReachedTheFirstLayer) {
  run_ranks(kBackend, 2, [](const Group& group) {
    const RecordingGroup recorded(group);
    Net net;
    const auto reducer = Reducer::make(named_parameters_of(net),
                                       recorded.group(), kBucketAParameter);
    net.first->weight.register_hook(
        [&](const at::Tensor&) { recorded.record("first layer"); });
    for (int step = 0; step < 3; ++step) {
      recorded.take_events();
      backward(net, *group, step);
      auto events = recorded.take_events();
      const auto first_layer = std::ranges::find(events, "first layer");
      ASSERT_NE(first_layer, events.end());
      EXPECT_GE(std::count(events.begin(), first_layer, "all_reduce"), 4);
      EXPECT_EQ(std::count(events.begin(), events.end(), "all_reduce"), 6);
    }
  });
}

TEST(Reducer, PutsTheAverageIntoGradWithoutAnotherCopy) {
  run_ranks(kBackend, 2, [](const Group& group) {
    Net net;
    const auto reducer = Reducer::make(named_parameters_of(net), group);
    backward(net, *group, 0);  // the next pass has the buckets for good
    net.zero_grad();
    backward(net, *group, 1);
    const void* slot = net.first->weight.grad().data_ptr();
    net.zero_grad();
    backward(net, *group, 2);
    EXPECT_EQ(net.first->weight.grad().data_ptr(), slot);
    EXPECT_LE(
        largest_difference(gradients_of(net), gradients_of_one_process(2, 2)),
        kTolerance);
  });
}

TEST(Reducer, PlansBucketsInRankZerosOrderOfArrivalAfterTheFirstStep) {
  run_ranks(kBackend, 2, [](const Group& group) {
    const RecordingGroup recorded(group);
    ParameterBag net;
    const auto reducer = Reducer::make(named_parameters_of(net),
                                       recorded.group(), kBucketAParameter);
    for (const char letter : {'a', 'b', 'c'})
      net[letter].register_hook([&, letter](const at::Tensor&) {
        recorded.record(std::string(1, letter));
      });
    const std::string order = group->rank() == 0 ? "bca" : "abc";
    const auto step = [&] {
      net.zero_grad();
      recorded.take_events();
      net.forward(order, group->rank() + 1).backward();
      EXPECT_THAT(net.gradients(), ElementsAre(1.5, 1.5, 1.5));
      return recorded.take_events();
    };
    const std::string reduce = "all_reduce";
    const auto first = step();
    EXPECT_EQ(first.back(), "broadcast");
    for (int again = 0; again < 2; ++again) {
      if (group->rank() == 0) {
        EXPECT_THAT(step(), ElementsAre("b", reduce, "c", reduce, "a", reduce));
      } else {
        EXPECT_THAT(step(), ElementsAre("a", "b", reduce, "c", reduce, reduce));
      }
    }
  });
}

TEST(Reducer, NamesAParameterWithoutGradientOnEveryRankAndGoesOn) {
  for (const ReducerOptions& options : {kBucketAParameter, ReducerOptions{}})
    run_ranks(kBackend, 3, [&](const Group& group) {
      ParameterBag net;
      const auto reducer =
          Reducer::make(named_parameters_of(net), group, options);
      for (int step = 0; step < 4; ++step) {
        net.zero_grad();
        const bool misses = step % 2 == 0 && group->rank() == 1;
        const auto pass = [&] {
          net.forward(misses ? "ac" : "cba", group->rank()).backward();
        };
        if (step % 2 == 0) {
          const std::string message = message_of(pass);
          EXPECT_THAT(message, HasSubstr("missing: b on rank 1\n"));
          EXPECT_THAT(message,
                      HasSubstr("on rank " + std::to_string(group->rank())));
          continue;
        }
        pass();
        EXPECT_THAT(net.gradients(), ElementsAre(1, 1, 1));
      }
    });
}

TEST(Reducer, ListsWhatEachRankMisses) {
  run_ranks(kBackend, 3, [](const Group& group) {
    ParameterBag net;
    const auto reducer = Reducer::make(named_parameters_of(net), group);
    const auto pass = [&] {
      net.forward(group->rank() == 1 ? "ab" : "c", 1).backward();
    };
    EXPECT_THROW(pass(), InvalidArgument);
    const std::string message = message_of(pass);
    EXPECT_THAT(message, HasSubstr("missing: a, b on ranks 0, 2\n"));
    EXPECT_THAT(message, HasSubstr("missing: c on rank 1\n"));
    EXPECT_THAT(message, HasSubstr("set find_unused_parameters"));
  });
}

TEST(Reducer, EndsTheOthersWaitWhenBackwardThrowsOnOneRank) {
  run_ranks(kBackend, 2, [](const Group& group) {
    Net net;
    const auto reducer =
        Reducer::make(named_parameters_of(net), group, kBucketAParameter);
    if (group->rank() == 1)
      net.first->weight.register_hook([](const at::Tensor& gradient) {
        throw std::runtime_error("a hook of the user's");
        return gradient;
      });
    const std::string message = message_of([&] { backward(net, *group); });
    if (group->rank() == 1) {
      EXPECT_THAT(message, HasSubstr("a hook of the user's"));
    } else {
      EXPECT_THAT(message, HasSubstr("rank 1 left its backward pass"));
      EXPECT_THROW(group->barrier().wait(), Error);
    }
  });
}

// Notes the sum of each gradient, after what it was put in front of.
class NotingHook : public torch::autograd::PostAccumulateGradHook {
 public:
  static void put_on(const at::Tensor& tensor, std::vector<double>& notes) {
    auto hook = std::make_unique<NotingHook>();
    hook->earlier_ =
        std::move(torch::autograd::impl::post_acc_grad_hooks(tensor));
    hook->notes_ = &notes;
    torch::autograd::impl::set_post_acc_grad_hooks(tensor, std::move(hook));
  }
  void operator()(const at::Tensor& tensor) override {
    if (earlier_) (*earlier_)(tensor);
    notes_->push_back(tensor.grad().sum().item<double>());
  }

 private:
  std::unique_ptr<torch::autograd::PostAccumulateGradHook> earlier_;
  std::vector<double>* notes_ = nullptr;
};

TEST(Reducer, KeepsTheHookThatWasThereAndCallsItFirst) {
  run_ranks(kBackend, 2, [](const Group& group) {
    const at::Tensor weight = wave({4}, 0).requires_grad_();
    const double own = 4 * (group->rank() + 1);
    const auto pass = [&] {
      weight.mutable_grad().reset();
      (weight * (group->rank() + 1)).sum().backward();
      return weight.grad().sum().item<double>();
    };
    std::vector<double> notes;
    NotingHook::put_on(weight, notes);
    {
      const auto reducer = Reducer::make({{"weight", weight}}, group);
      EXPECT_EQ(pass(), 6);
    }
    EXPECT_EQ(pass(), own);
    EXPECT_THAT(notes, ElementsAre(own, own));
  });
}

TEST(Reducer, IsDisarmedWhenDestroyedBelowALaterHook) {
  run_ranks(kBackend, 2, [](const Group& group) {
    const at::Tensor weight = wave({4}, 0).requires_grad_();
    std::vector<double> notes;
    {
      const auto reducer = Reducer::make({{"weight", weight}}, group);
      NotingHook::put_on(weight, notes);
    }
    (weight * (group->rank() + 1)).sum().backward();
    EXPECT_EQ(weight.grad()[0].item<double>(), group->rank() + 1);
    EXPECT_THAT(notes, ElementsAre(4 * (group->rank() + 1)));
    // And it no longer counts as reduced by any reducer.
    EXPECT_NO_THROW(Reducer::make({{"weight", weight}}, group));
  });
}

TEST(Reducer, HooksNothingInAGroupOfOne) {
  run_ranks(kBackend, 1, [](const Group& group) {
    Net net;
    const auto reducer = Reducer::make(named_parameters_of(net), group);
    for (const at::Tensor& parameter : net.parameters())
      EXPECT_EQ(torch::autograd::impl::post_acc_grad_hooks(parameter), nullptr);
    EXPECT_EQ(reducer->bucket_count(), 0u);
    backward(net, *group);
    EXPECT_LE(
        largest_difference(gradients_of(net), gradients_of_one_process(1)), 0);
  });
}

TEST(Reducer, LeavesGradInMemoryOfItsOwnWhenAskedTo) {
  run_ranks(kBackend, 2, [](const Group& group) {
    Net net;
    const auto reducer = Reducer::make(named_parameters_of(net), group,
                                       {.gradient_as_bucket_view = false});
    backward(net, *group, 0);
    const auto kept = gradients_of(net);
    net.zero_grad();
    backward(net, *group, 1);
    EXPECT_LE(largest_difference(kept, gradients_of_one_process(2, 0)),
              kTolerance);
    const void* memory = net.first->weight.grad().data_ptr();
    net.zero_grad(/*set_to_none=*/false);
    backward(net, *group, 2);
    EXPECT_EQ(net.first->weight.grad().data_ptr(), memory);
    EXPECT_LE(
        largest_difference(gradients_of(net), gradients_of_one_process(2, 2)),
        kTolerance);
    const auto accumulated = gradients_of(net);
    backward(net, *group, 3);
    EXPECT_TRUE(net.first->weight.grad().is_same(accumulated[0]));
  });
}

TEST(Reducer, GivesTheSameBitsOnEveryRankAndInEveryRun) {
  std::vector<std::vector<at::Tensor>> results(6);
  for (const int run : {0, 1})
    run_ranks(kBackend, 3, [&](const Group& group) {
      Net net;
      const auto reducer =
          Reducer::make(named_parameters_of(net), group,
                        {.first_bucket_bytes = 64, .bucket_bytes = 128});
      backward(net, *group);
      results[static_cast<std::size_t>(3 * run + group->rank())] =
          gradients_of(net);
    });
  for (const auto& gradients : results)
    EXPECT_EQ(largest_difference(gradients, results[0]), 0);
}

}  // namespace
}  // namespace lockstep
