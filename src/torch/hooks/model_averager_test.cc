// Tests of post-local SGD: its hook and its averages of models.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/comm/groups.h"
#include "lockstep/torch/comm_hooks.h"
#include "src/comm/testing/run_ranks.h"
#include "src/torch/testing/hooked_weight.h"
#include "src/torch/testing/parameter_bag.h"

namespace lockstep {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// The values of a tensor that holds `rank` before each of `steps` calls.
template <class Averager>
std::vector<double> averages(Averager& averager, int rank, int steps) {
  std::vector<double> seen;
  for (int step = 0; step < steps; ++step) {
    const at::Tensor parameter = torch::full({3}, rank, torch::kFloat);
    averager.average_parameters({parameter, torch::zeros({2}, torch::kDouble)});
    seen.push_back(parameter[2].item<double>());
  }
  return seen;
}

TEST(PeriodicModelAverager, AveragesOncePerPeriodAfterTheWarmUp) {
  run_ranks(kBackend, 3, [](const Group& group) {
    PeriodicModelAverager averager(
        {.period = 3, .warmup_steps = 2, .group = group});
    const double own = group->rank();
    EXPECT_THAT(averages(averager, group->rank(), 7),
                ElementsAre(own, own, 1, own, own, 1, own));
    EXPECT_EQ(averager.step(), 7);
    averager.set_step(8);
    EXPECT_THAT(averages(averager, group->rank(), 1), ElementsAre(1));
  });
}

TEST(PeriodicModelAverager, AveragesParametersInPlaceWhateverTheirStrides) {
  run_ranks(kBackend, 2, [](const Group& group) {
    PeriodicModelAverager averager({.group = group});
    const at::Tensor turned = wave({4, 3}, group->rank()).t();
    averager.average_parameters(turned);
    EXPECT_TRUE(
        torch::allclose(turned, ((wave({4, 3}, 0) + wave({4, 3}, 1)) / 2).t()));
  });
}

TEST(HierarchicalModelAverager, AveragesOverTheLargestGroupWhoseTurnItIs) {
  run_ranks(kBackend, 4, [](const Group& group) {
    HierarchicalModelAverager averager(
        {.levels = {{.period = 2, .group_size = 2},
                    {.period = 4, .group_size = 4}},
         .warmup_steps = 1,
         .group = group});
    const double own = group->rank();
    const double of_two = group->rank() < 2 ? 0.5 : 2.5;
    EXPECT_THAT(averages(averager, group->rank(), 9),
                ElementsAre(own, own, of_two, own, 1.5, own, of_two, own, 1.5));
  });
}

TEST(HierarchicalModelAverager, RefusesLevelsThatDoNotFit) {
  run_ranks(kBackend, 4, [](const Group& group) {
    const auto refusal =
        [&](std::vector<HierarchicalModelAveragerOptions::Level> levels) {
          return message_of([&] {
            HierarchicalModelAverager averager(
                {.levels = std::move(levels), .group = group});
          });
        };
    EXPECT_THAT(refusal({}), HasSubstr("list of levels is empty"));
    EXPECT_THAT(refusal({{1, 2}}), HasSubstr("not of all 4 ranks"));
    EXPECT_THAT(refusal({{1, 3}, {2, 4}}), HasSubstr("groups of 3 do not"));
    EXPECT_THAT(refusal({{2, 2}, {2, 4}}), HasSubstr("comes after"));
    EXPECT_THAT(refusal({{2, 4}, {4, 4}}), HasSubstr("comes after"));
    EXPECT_THAT(refusal({{0, 4}}), HasSubstr("the period is 0"));
  });
}

TEST(PostLocalSgdHook, AveragesOverAllRanksAndThenOverItsSubGroup) {
  run_ranks(kBackend, 4, [](const Group& group) {
    const Group pair = split(*group, {.color = group->rank() / 2});
    HookedWeight weight(group, {3},
                        std::make_shared<PostLocalSgdHook>(PostLocalSgdOptions{
                            .subgroup = pair, .start_iteration = 2}));
    std::vector<double> seen;
    for (int pass = 0; pass < 4; ++pass)
      seen.push_back(
          weight.reduce(torch::full({3}, group->rank()))[0].item<double>());
    const double of_two = group->rank() < 2 ? 0.5 : 2.5;
    EXPECT_THAT(seen, ElementsAre(1.5, 1.5, of_two, of_two));
  });
}

TEST(PostLocalSgdHook, LeavesGradientsLocalWhenAskedTo) {
  run_ranks(kBackend, 2, [](const Group& group) {
    HookedWeight weight(
        group, {3},
        std::make_shared<PostLocalSgdHook>(PostLocalSgdOptions{
            .start_iteration = 1, .post_local_gradient_allreduce = false}));
    const at::Tensor mine = torch::full({3}, group->rank(), torch::kFloat);
    EXPECT_EQ(weight.reduce(mine)[0].item<double>(), 0.5);
    EXPECT_EQ(weight.reduce(mine)[0].item<double>(), group->rank());
  });
}

TEST(PostLocalSgdHook, EndsTheWaitsInItsSubGroupWhenAPassEndsByAnException) {
  run_ranks(kBackend, 4, [](const Group& group) {
    const Group pair = split(*group, {.color = group->rank() / 2});
    ParameterBag bag("ab");
    const auto reducer =
        Reducer::make(named_parameters_of(bag), group, kBucketAParameter);
    reducer->register_comm_hook(std::make_shared<PostLocalSgdHook>(
        PostLocalSgdOptions{.subgroup = pair}));
    if (group->rank() == 1)
      bag['a'].register_hook(
          [](const at::Tensor&) { throw std::runtime_error("out of luck"); });
    EXPECT_THAT(message_of([&] { bag.forward("ba", 1).backward(); }),
                HasSubstr(group->rank() == 1 ? "out of luck"
                                             : "rank 1 left its backward"));
  });
}

TEST(PostLocalSgdHook, RefusesToGoWithoutASubGroup) {
  EXPECT_THAT(message_of([] { PostLocalSgdHook hook({}); }),
              HasSubstr("has no sub-group"));
}

}  // namespace
}  // namespace lockstep
