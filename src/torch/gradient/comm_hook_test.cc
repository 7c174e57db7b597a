// Tests of communication hooks: their arguments, the order of their steps, and
// the effect of their failure on other ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/groups.h"
#include "lockstep/torch/comm_hooks.h"
#include "lockstep/torch/distributed_data_parallel.h"
#include "src/comm/testing/run_ranks.h"
#include "src/torch/testing/parameter_bag.h"

namespace lockstep {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::SizeIs;

// A hook that is a function.
class FunctionHook : public CommHook {
 public:
  using Function = std::function<HookProgress(const GradBucket&)>;
  explicit FunctionHook(Function function) : function_(std::move(function)) {}
  HookProgress start(const GradBucket& bucket) override {
    return function_(bucket);
  }

 private:
  Function function_;
};

std::shared_ptr<CommHook> hook_of(FunctionHook::Function function) {
  return std::make_shared<FunctionHook>(std::move(function));
}

TEST(CommHook, GetsTheGradientsOfABucketAsOneTensorAndAsViewsOfIt) {
  run_ranks(kBackend, 2, [](const Group& group) {
    DistributedDataParallel model(Net(), {.group = group});
    std::vector<GradBucket> seen;
    model.register_comm_hook(hook_of([&](const GradBucket& bucket) {
      seen.push_back(bucket);
      return HookProgress{all_reduce_average(bucket)};
    }));
    backward(model, *group);
    ASSERT_THAT(seen, SizeIs(1));
    const GradBucket& bucket = seen[0];
    EXPECT_EQ(bucket.index, 0U);
    EXPECT_TRUE(bucket.is_last);
    EXPECT_EQ(bucket.group->rank(), group->rank());
    EXPECT_EQ(bucket.group->size(), group->size());
    EXPECT_EQ(bucket.buffer.numel(), 6 * 8 + 8 + 8 * 5 + 5 + 5 * 3 + 3);
    ASSERT_THAT(bucket.gradients, SizeIs(6));
    std::int64_t begin = 0;
    for (std::size_t i = 0; i < 6; ++i) {
      EXPECT_TRUE(bucket.parameters[i].grad().is_same(bucket.gradients[i]));
      const std::int64_t count = bucket.gradients[i].numel();
      EXPECT_TRUE(bucket.buffer.narrow(0, begin, count)
                      .equal(bucket.gradients[i].flatten()));
      begin += count;
    }
  });
}

TEST(CommHook, LeavesInTheBufferWhatBecomesTheGradients) {
  run_ranks(kBackend, 2, [](const Group& group) {
    DistributedDataParallel model(Net(), small_buckets(group));
    model.register_comm_hook(hook_of([](const GradBucket& bucket) {
      return followed_by({all_reduce_average(bucket)},
                         [buffer = bucket.buffer] { buffer.mul_(-2); });
    }));
    for (int step = 0; step < 3; ++step) {
      model.zero_grad();
      backward(model, *group, step);
      auto expected = gradients_of_one_process(2, step);
      for (at::Tensor& gradient : expected) gradient = gradient * -2;
      EXPECT_LE(largest_difference(gradients_of(*model), expected), kTolerance);
    }
  });
}

TEST(CommHook, TakesTheStepsOfAllBucketsInTurn) {
  run_ranks(kBackend, 2, [](const Group& group) {
    ParameterBag bag("abc");
    const auto reducer =
        Reducer::make(named_parameters_of(bag), group, kBucketAParameter);
    std::vector<std::string> events;
    reducer->register_comm_hook(hook_of([&](const GradBucket& bucket) {
      const std::string name = std::to_string(bucket.index);
      events.push_back("start " + name);
      std::function<HookProgress()> second = [&events, bucket, name] {
        events.push_back("second " + name);
        return HookProgress{all_reduce_average(bucket)};
      };
      std::function<HookProgress()> first = [&events, bucket, name, second] {
        events.push_back("first " + name);
        return HookProgress{all_reduce_average(bucket), second};
      };
      const std::function<HookProgress()> then[] = {nullptr, second, first};
      return HookProgress{all_reduce_average(bucket), then[bucket.index]};
    }));
    bag.forward("cba", group->rank() + 1).backward();
    EXPECT_THAT(events, ElementsAre("start 0", "start 1", "start 2", "second 1",
                                    "first 2", "second 2"));
    EXPECT_THAT(bag.gradients(), ElementsAre(1.5, 1.5, 1.5));
  });
}

TEST(CommHook, IsAskedInReducedPassesAlone) {
  run_ranks(kBackend, 2, [](const Group& group) {
    DistributedDataParallel model(Net(), {.group = group});
    int asked = 0;
    model.register_comm_hook(hook_of([&](const GradBucket& bucket) {
      ++asked;
      return HookProgress{all_reduce_average(bucket)};
    }));
    {
      const auto guard = model.no_sync();
      backward(model, *group);
    }
    EXPECT_EQ(asked, 0);
    backward(model, *group);
    EXPECT_EQ(asked, 1);
    auto expected = gradients_of_one_process(2);
    for (at::Tensor& gradient : expected) gradient = gradient * 2;
    EXPECT_LE(largest_difference(gradients_of(*model), expected), kTolerance);
  });
}

TEST(CommHook, IsAskedInAGroupOfOneWhereThatReducesAlone) {
  for (const bool alone : {false, true})
    run_ranks(kBackend, 1, [&](const Group& group) {
      DistributedDataParallel model(Net(),
                                    {.group = group, .reduce_alone = alone});
      int asked = 0;
      model.register_comm_hook(hook_of([&](const GradBucket& bucket) {
        ++asked;
        return HookProgress{all_reduce_average(bucket)};
      }));
      backward(model, *group);
      EXPECT_EQ(asked, alone ? 1 : 0);
      EXPECT_LE(
          largest_difference(gradients_of(*model), gradients_of_one_process(1)),
          kTolerance);
    });
}

TEST(CommHook, LeavesUnusedParametersToTheOptions) {
  run_ranks(kBackend, 2, [](const Group& group) {
    ParameterBag bag("abc");
    ReducerOptions options = kBucketAParameter;
    options.find_unused_parameters = true;
    const auto reducer =
        Reducer::make(named_parameters_of(bag), group, options);
    reducer->register_comm_hook(allreduce_hook());
    for (int step = 0; step < 3; ++step) {
      bag.zero_grad();
      bag.forward(group->rank() == 0 ? "a" : "ab", 2).backward();
      EXPECT_THAT(bag.gradients(), ElementsAre(2, 1, testing::IsNan()));
    }
  });
}

TEST(CommHook, LeavesMissingGradientsToBeReported) {
  run_ranks(kBackend, 2, [](const Group& group) {
    ParameterBag bag("ab");
    const auto reducer = Reducer::make(named_parameters_of(bag), group);
    reducer->register_comm_hook(allreduce_hook());
    EXPECT_THAT(message_of([&] {
                  bag.forward(group->rank() == 0 ? "a" : "ab", 1).backward();
                }),
                HasSubstr("missing: b on rank 0"));
  });
}

// Within join() the divisor is the number of ranks that have data.
TEST(CommHook, AveragesOverTheRanksThatHaveDataWithinJoin) {
  run_ranks(kBackend, 2, [](const Group& group) {
    DistributedDataParallel model(ParameterBag("a"), {.group = group});
    model.register_comm_hook(allreduce_hook());
    const auto scope = model.join({.divide_by_initial_world_size = false});
    for (int step = 0; step <= group->rank(); ++step) {
      model.zero_grad();
      model("a", 3).backward();
      EXPECT_THAT(model->gradients(), ElementsAre(3)) << "step " << step;
    }
  });
}

void expect_failure_of_rank_1(const ProcessGroup& group,
                              const std::function<void()>& pass) {
  const std::string message = message_of(pass);
  EXPECT_THAT(message, HasSubstr("no more of this"));
  if (group.rank() != 1) {
    EXPECT_THAT(message, HasSubstr("on rank 1 a communication hook failed"));
  }
}

TEST(CommHook, EndsTheOthersWaitWhenItThrowsAtItsStart) {
  run_ranks(kBackend, 3, [](const Group& group) {
    DistributedDataParallel model(Net(), small_buckets(group));
    model.register_comm_hook(hook_of([&](const GradBucket& bucket) {
      if (group->rank() == 1 && bucket.index == 1)
        throw std::runtime_error("no more of this");
      return HookProgress{all_reduce_average(bucket)};
    }));
    expect_failure_of_rank_1(*group, [&] { backward(model, *group); });
  });
}

TEST(CommHook, EndsTheOthersWaitWhenItThrowsInALaterStep) {
  run_ranks(kBackend, 3, [](const Group& group) {
    DistributedDataParallel model(Net(), small_buckets(group));
    model.register_comm_hook(hook_of([&](const GradBucket& bucket) {
      return HookProgress{all_reduce_average(bucket), [&group, bucket] {
                            if (group->rank() == 1 && bucket.index == 1)
                              throw std::runtime_error("no more of this");
                            return HookProgress{all_reduce_average(bucket)};
                          }};
    }));
    expect_failure_of_rank_1(*group, [&] { backward(model, *group); });
  });
}

// One rank aborts the sub-group; the others learn of it through the group in
// which they wait.
TEST(CommHook, EndsTheOthersWaitWhenAnOperationOfItsOwnGroupFails) {
  run_ranks(kBackend, 4, [](const Group& group) {
    const Group pair = split(*group, {.color = group->rank() / 2});
    DistributedDataParallel model(Net(), {.group = group});
    model.register_comm_hook(hook_of([&](const GradBucket& bucket) {
      GradBucket of_pair = bucket;
      of_pair.group = pair;
      if (group->rank() == 1) pair->abort("no more of this");
      return HookProgress{all_reduce_average(of_pair)};
    }));
    EXPECT_THAT(message_of([&] { backward(model, *group); }),
                HasSubstr("no more of this"));
  });
}

TEST(CommHook, IsRefusedWhereItCannotWork) {
  run_ranks(kBackend, 2, [](const Group& group) {
    DistributedDataParallel model(Net(), {.group = group});
    const auto refusal = [](auto& of, std::shared_ptr<CommHook> hook) {
      return message_of([&] { of.register_comm_hook(std::move(hook)); });
    };
    EXPECT_THAT(refusal(model, nullptr), HasSubstr("the hook is null"));
    EXPECT_EQ(refusal(model, allreduce_hook()), "no error");
    EXPECT_THAT(refusal(model, allreduce_hook()),
                HasSubstr("is registered already"));
    DistributedDataParallel other(Net(),
                                  {.group = group, .average_gradients = false});
    EXPECT_THAT(refusal(other, allreduce_hook()),
                HasSubstr("leave average_gradients at true"));
  });
}

TEST(CommHook, IsRefusedDuringAPass) {
  run_ranks(kBackend, 2, [](const Group& group) {
    ParameterBag bag("ab");
    const auto reducer = Reducer::make(named_parameters_of(bag), group);
    std::string message;
    bag['a'].register_hook([&](const at::Tensor&) {
      message =
          message_of([&] { reducer->register_comm_hook(allreduce_hook()); });
    });
    bag.forward("ba", 1).backward();
    EXPECT_THAT(message, HasSubstr("a backward pass is under way"));
  });
}

TEST(CommHook, MayComeAfterSomePasses) {
  run_ranks(kBackend, 2, [](const Group& group) {
    DistributedDataParallel model(Net(), small_buckets(group));
    for (int step = 0; step < 4; ++step) {
      if (step == 2) model.register_comm_hook(allreduce_hook());
      model.zero_grad();
      backward(model, *group, step);
      EXPECT_LE(largest_difference(gradients_of(*model),
                                   gradients_of_one_process(2, step)),
                kTolerance);
    }
  });
}

}  // namespace
}  // namespace lockstep
