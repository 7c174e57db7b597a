#include "lockstep/torch/reducer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>

#include "lockstep/base/error.h"
#include "lockstep/comm/testing/run_ranks.h"
#include "lockstep/torch/testing/recording_backend.h"
#include "lockstep/torch/testing/small_nets.h"

namespace lockstep {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<NamedParameter> named_parameters(const torch::nn::Module& module) {
  std::vector<NamedParameter> parameters;
  for (const auto& item : module.named_parameters())
    parameters.push_back({item.key(), item.value()});
  return parameters;
}

// A group whose operations are recorded, and what records them.
struct Recorded {
  std::shared_ptr<RecordingBackend> backend;
  Group group;
};
Recorded record(const Group& group) {
  const auto backend = std::make_shared<RecordingBackend>(group);
  return {backend, std::make_shared<ProcessGroup>(
                       backend, GroupIdentity{.name = "recorded",
                                              .rank = group->rank(),
                                              .size = group->size()})};
}

constexpr ReducerOptions kBucketAParameter{.first_bucket_bytes = 0,
                                           .bucket_bytes = 0};

TEST(Reducer, ReducesBucketsBeforeBackwardHasReachedTheFirstLayer) {
  run_ranks(kBackend, 2, [](const Group& group) {
    const Recorded recorded = record(group);
    Net net;
    const Reducer reducer(named_parameters(net), recorded.group,
                          kBucketAParameter);
    net.first->weight.register_hook(
        [&](const at::Tensor&) { recorded.backend->record("first layer"); });
    for (int step = 0; step < 3; ++step) {
      recorded.backend->take_events();
      backward(net, *group, step);
      auto events = recorded.backend->take_events();
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
    const Reducer reducer(named_parameters(net), group);
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

// Layers that are used in the order in which they are not registered; rank 1
// goes yet another way.
struct OutOfOrder : torch::nn::Module {
  OutOfOrder() {
    for (const char* name : {"a", "b", "c"})
      register_parameter(name, wave({4}, name[0]));
  }
  // d/dp of factor * p is factor. The sum is built so that the gradients of the
  // parameters arrive in the order of `names`.
  at::Tensor forward(const std::vector<std::string>& names, double factor) {
    at::Tensor chain = torch::zeros({});
    for (auto name = names.rbegin(); name != names.rend(); ++name)
      chain = chain + (named_parameters()[*name] * factor).sum();
    return chain;
  }
};

TEST(Reducer, PlansBucketsInRankZerosOrderOfArrivalAfterTheFirstStep) {
  run_ranks(kBackend, 2, [](const Group& group) {
    const Recorded recorded = record(group);
    OutOfOrder net;
    const Reducer reducer(named_parameters(net), recorded.group,
                          kBucketAParameter);
    for (const char* name : {"a", "b", "c"})
      net.named_parameters()[name].register_hook(
          [&, name](const at::Tensor&) { recorded.backend->record(name); });
    const std::vector<std::string> order =
        group->rank() == 0 ? std::vector<std::string>{"b", "c", "a"}
                           : std::vector<std::string>{"a", "b", "c"};
    const auto step = [&] {
      net.zero_grad();
      recorded.backend->take_events();
      net.forward(order, group->rank() + 1).backward();
      for (const at::Tensor& gradient : gradients_of(net))
        EXPECT_TRUE((gradient == 1.5).all().item<bool>());
      return recorded.backend->take_events();
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
  const std::vector<std::string> all{"c", "b", "a"};
  for (const ReducerOptions& options : {kBucketAParameter, ReducerOptions{}})
    run_ranks(kBackend, 3, [&](const Group& group) {
      OutOfOrder net;
      const Reducer reducer(named_parameters(net), group, options);
      for (int step = 0; step < 4; ++step) {
        net.zero_grad();
        const bool misses = step % 2 == 0 && group->rank() == 1;
        const auto pass = [&] {
          net.forward(misses ? std::vector<std::string>{"a", "c"} : all,
                      group->rank())
              .backward();
        };
        if (step % 2 == 0) {
          const std::string message = message_of(pass);
          EXPECT_THAT(message, HasSubstr("missing: b on rank 1\n"));
          EXPECT_THAT(message,
                      HasSubstr("on rank " + std::to_string(group->rank())));
          continue;
        }
        pass();
        for (const at::Tensor& gradient : gradients_of(net))
          EXPECT_TRUE((gradient == 1).all().item<bool>());
      }
    });
}

TEST(Reducer, ListsWhatEachRankMisses) {
  run_ranks(kBackend, 3, [](const Group& group) {
    OutOfOrder net;
    const Reducer reducer(named_parameters(net), group);
    const auto pass = [&] {
      net.forward(group->rank() == 1 ? std::vector<std::string>{"a", "b"}
                                     : std::vector<std::string>{"c"},
                  1)
          .backward();
    };
    EXPECT_THROW(pass(), InvalidArgument);
    const std::string message = message_of(pass);
    EXPECT_THAT(message, HasSubstr("missing: a, b on ranks 0, 2\n"));
    EXPECT_THAT(message, HasSubstr("missing: c on rank 1\n"));
  });
}

TEST(Reducer, EndsTheOthersWaitWhenBackwardThrowsOnOneRank) {
  run_ranks(kBackend, 2, [](const Group& group) {
    Net net;
    const Reducer reducer(named_parameters(net), group, kBucketAParameter);
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

TEST(Reducer, RefusesASparseGradient) {
  run_ranks(kBackend, 2, [](const Group& group) {
    at::Tensor table = wave({4, 2}, 0).requires_grad_();
    const Reducer reducer({{"table", table}}, group);
    const at::Tensor indices = torch::tensor({0, 2});
    const auto pass = [&] {
      at::embedding(table, indices, -1, false, /*sparse=*/true)
          .sum()
          .backward();
    };
    EXPECT_THAT(message_of(pass),
                HasSubstr("gradient of parameter table cannot be reduced: it "
                          "is sparse"));
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
      const Reducer reducer({{"weight", weight}}, group);
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
      const Reducer reducer({{"weight", weight}}, group);
      NotingHook::put_on(weight, notes);
    }
    (weight * (group->rank() + 1)).sum().backward();
    EXPECT_EQ(weight.grad()[0].item<double>(), group->rank() + 1);
    EXPECT_THAT(notes, ElementsAre(4 * (group->rank() + 1)));
    // And it no longer counts as reduced by somebody.
    EXPECT_NO_THROW(Reducer({{"weight", weight}}, group));
  });
}

TEST(Reducer, HooksNothingInAGroupOfOne) {
  run_ranks(kBackend, 1, [](const Group& group) {
    Net net;
    const Reducer reducer(named_parameters(net), group);
    for (const at::Tensor& parameter : net.parameters())
      EXPECT_EQ(torch::autograd::impl::post_acc_grad_hooks(parameter), nullptr);
    EXPECT_EQ(reducer.bucket_count(), 0u);
    backward(net, *group);
    EXPECT_LE(
        largest_difference(gradients_of(net), gradients_of_one_process(1)), 0);
  });
}

TEST(Reducer, GivesTheSameBitsOnEveryRankAndInEveryRun) {
  std::vector<std::vector<at::Tensor>> results(6);
  for (const int run : {0, 1})
    run_ranks(kBackend, 3, [&](const Group& group) {
      Net net;
      const Reducer reducer(named_parameters(net), group,
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
