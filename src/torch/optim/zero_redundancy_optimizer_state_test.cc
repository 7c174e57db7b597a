#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/serialize.h>

#include <sstream>

#include "lockstep/torch/zero_redundancy_optimizer.h"
#include "src/comm/testing/run_ranks.h"
#include "src/torch/testing/update_rules.h"

namespace lockstep {
namespace {

using testing::HasSubstr;
using torch::optim::AdamOptions;
using torch::optim::OptimizerOptions;
using torch::optim::SGDOptions;

constexpr int kStateSteps = 20;

// Trains on `before` ranks, saves, loads on `after` ranks and continues.
std::vector<at::Tensor> learn_in_two_worlds(const OptimizerOptions& rule,
                                            int before, int after) {
  std::string file;
  std::vector<at::Tensor> weights;
  run_ranks(kBackend, before, [&](const Group& group) {
    auto parameters = formula_parameters();
    ZeroRedundancyOptimizer optimizer(parameters, rule, {.group = group});
    optimizer.param_groups()[0].options().set_lr(0.02);
    train_by_formula(optimizer, 1, kStateSteps / 2);
    optimizer.consolidate_state_dict(before - 1);
    if (group->rank() != before - 1) return;
    std::stringstream stream;
    torch::save(optimizer, stream);
    file = stream.str();
    weights = copies_of(parameters);
  });
  std::vector<at::Tensor> result;
  run_ranks(kBackend, after, [&](const Group& group) {
    auto parameters = copies_of(weights);
    ZeroRedundancyOptimizer optimizer(parameters, rule, {.group = group});
    std::stringstream stream(file);
    torch::load(optimizer, stream);
    EXPECT_EQ(optimizer.param_groups()[0].options().get_lr(), 0.02);
    train_by_formula(optimizer, kStateSteps / 2 + 1, kStateSteps);
    if (group->rank() == 0) result = parameters;
  });
  return result;
}

TEST(ZeroRedundancyOptimizer, GoesOnFromAFileAtAnotherWorldSize) {
  for (const auto& [name, rule] : rules()) {
    SCOPED_TRACE(name);
    auto expected = formula_parameters();
    const auto unsharded = make_unsharded(expected, *rule);
    unsharded->param_groups()[0].options().set_lr(0.02);
    train_by_formula(*unsharded, 1, kStateSteps);
    EXPECT_TRUE(are_equal(learn_in_two_worlds(*rule, 3, 2), expected));
    EXPECT_TRUE(are_equal(learn_in_two_worlds(*rule, 2, 4), expected));
    EXPECT_TRUE(are_equal(learn_in_two_worlds(*rule, 1, 3), expected));
    EXPECT_TRUE(are_equal(learn_in_two_worlds(*rule, 4, 1), expected));
  }
}

TEST(ZeroRedundancyOptimizer, SharesStateWithLibTorchsOwn) {
  auto expected = formula_parameters();
  torch::optim::Adam unsharded(expected, AdamOptions(0.01));
  train_by_formula(unsharded, 1, 5);
  const auto weights = copies_of(expected);
  std::stringstream saved;
  torch::save(unsharded, saved);
  train_by_formula(unsharded, 6, 15);
  run_ranks(kBackend, 2, [&](const Group& group) {
    auto parameters = copies_of(weights);
    ZeroRedundancyOptimizer optimizer(parameters, AdamOptions(0.01),
                                      {.group = group});
    std::stringstream file(saved.str());
    torch::load(optimizer, file);
    train_by_formula(optimizer, 6, 10);
    optimizer.consolidate_state_dict();
    if (group->rank() != 0) return;
    std::stringstream again;
    torch::save(optimizer, again);
    auto alone = copies_of(parameters);
    torch::optim::Adam resumed(alone, AdamOptions(0.01));
    torch::load(resumed, again);
    train_by_formula(resumed, 11, 15);
    EXPECT_LE(largest_difference(alone, expected), 1e-5);
  });
}

TEST(ZeroRedundancyOptimizer, TakesStateFromAnotherOptimizerInMemory) {
  const auto rule = SGDOptions(0.05).momentum(0.9);
  const auto expected = learn_unsharded(rule, kStateSteps);
  run_ranks(kBackend, 2, [&](const Group& group) {
    auto first = formula_parameters();
    FusedSGD unsharded(first, rule);
    train_by_formula(unsharded, 1, 10);
    auto second = copies_of(first);
    ZeroRedundancyOptimizer optimizer(second, rule, {.group = group});
    optimizer.load_state_dict(unsharded);
    train_by_formula(optimizer, 11, kStateSteps);
    EXPECT_TRUE(are_equal(second, expected));
    EXPECT_THAT(
        message_of([&] {
          optimizer.load_state_dict(FusedAdam(first, AdamOptions(0.01)));
        }),
        HasSubstr("another kind"));
  });
}

TEST(ZeroRedundancyOptimizer, SaysThatStateMustBeGatheredBeforeItIsSaved) {
  run_ranks(kBackend, 2, [](const Group& group) {
    auto parameters = formula_parameters();
    ZeroRedundancyOptimizer optimizer(parameters, AdamOptions(0.01),
                                      {.group = group});
    const auto save = [&] {
      std::stringstream file;
      torch::save(optimizer, file);
    };
    EXPECT_THAT(message_of(save), HasSubstr("consolidate_state_dict()"));
    optimizer.consolidate_state_dict();
    EXPECT_EQ(message_of(save) == "no error", group->rank() == 0);
    train_by_formula(optimizer, 1, 1);  // the gathered state is outdated now
    EXPECT_THAT(message_of(save), HasSubstr("consolidate_state_dict()"));
    EXPECT_THAT(message_of([&] { optimizer.consolidate_state_dict(2); }),
                HasSubstr("no rank 2"));
  });
}

}  // namespace
}  // namespace lockstep
