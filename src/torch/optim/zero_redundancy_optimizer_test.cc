#include "lockstep/torch/zero_redundancy_optimizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/schedulers/step_lr.h>

#include <functional>
#include <limits>
#include <mutex>
#include <span>
#include <sstream>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/comm/groups.h"
#include "lockstep/torch/distributed_data_parallel.h"
#include "lockstep/torch/optimizers.h"
#include "src/comm/testing/run_ranks.h"
#include "src/torch/optim/update_state.h"
#include "src/torch/testing/formula_parameters.h"
#include "src/torch/testing/update_rules.h"

namespace lockstep {
namespace {

using testing::HasSubstr;
using torch::optim::AdamOptions;
using torch::optim::AdamWOptions;
using torch::optim::OptimizerOptions;
using torch::optim::SGDOptions;

constexpr int kUpdates = 20;

struct ShardingSetting {
  const char* backend;
  int ranks;
};
class ShardingRanks : public testing::TestWithParam<ShardingSetting> {};
INSTANTIATE_TEST_SUITE_P(
    ZeroRedundancyOptimizer, ShardingRanks,
    testing::Values(ShardingSetting{"shm", 1}, ShardingSetting{"shm", 2},
                    ShardingSetting{"shm", 3}, ShardingSetting{"shm", 4},
                    ShardingSetting{"reference", 3}),
    [](const auto& setting) {
      return setting.param.backend + std::to_string(setting.param.ranks);
    });

TEST_P(ShardingRanks, LearnWhatAnUnshardedOptimizerLearnsToTheBit) {
  for (const auto& [name, rule] : rules()) {
    SCOPED_TRACE(name);
    const auto expected = learn_unsharded(*rule, kUpdates);
    run_ranks(GetParam().backend, GetParam().ranks, [&](const Group& group) {
      auto parameters = formula_parameters();
      ZeroRedundancyOptimizer optimizer(parameters, *rule, {.group = group});
      train_by_formula(optimizer, 1, kUpdates);
      EXPECT_TRUE(are_equal(parameters, expected));
    });
  }
}

// The same under DistributedDataParallel, whose gradients lie in buckets.
TEST_P(ShardingRanks, TrainAModelAsAnUnshardedOptimizerDoes) {
  const auto train_with = [&](auto make_optimizer) {
    std::vector<std::vector<at::Tensor>> weights(
        static_cast<std::size_t>(GetParam().ranks));
    run_ranks(GetParam().backend, GetParam().ranks, [&](const Group& group) {
      auto model = DistributedDataParallel(Net(), small_buckets(group));
      const auto optimizer = make_optimizer(model.parameters(), group);
      const auto share_of_step = [&](int step) {
        return share_of_batch(step, group->rank(), group->size(), 12);
      };
      train(model, *optimizer, share_of_step, kUpdates);
      weights[static_cast<std::size_t>(group->rank())] = model.parameters();
    });
    return weights;
  };
  const auto expected = train_with([](const auto& parameters, const Group&) {
    return std::make_unique<FusedAdamW>(parameters, AdamWOptions(0.01));
  });
  const auto sharded =
      train_with([](const auto& parameters, const Group& group) {
        return std::make_unique<ZeroRedundancyOptimizer>(
            parameters, AdamWOptions(0.01),
            ZeroRedundancyOptimizerOptions{.group = group});
      });
  for (const auto& weights : sharded)
    EXPECT_TRUE(are_equal(weights, expected[0]));
}

std::size_t state_bytes_of(const torch::optim::Optimizer& optimizer) {
  std::size_t bytes = 0;
  for (const auto& [parameter, state] : optimizer.state())
    for (const at::Tensor& numbers : read_state(state.get()).numbers)
      if (numbers.defined()) bytes += numbers.nbytes();
  return bytes;
}

TEST_P(ShardingRanks, KeepAnEqualShareOfTheStateEach) {
  for (const auto& [name, rule] : rules()) {
    SCOPED_TRACE(name);
    auto alone = formula_parameters();
    const auto unsharded = make_unsharded(alone, *rule);
    train_by_formula(*unsharded, 1, 1);
    const std::size_t total = state_bytes_of(*unsharded);
    std::mutex mutex;
    std::size_t sum = 0;
    run_ranks(GetParam().backend, GetParam().ranks, [&](const Group& group) {
      auto parameters = formula_parameters();
      ZeroRedundancyOptimizer optimizer(parameters, *rule, {.group = group});
      train_by_formula(optimizer, 1, 1);
      const std::size_t own = optimizer.state_bytes();
      // Up to a cache line for each of two numbers per element.
      EXPECT_LE(own, total / static_cast<std::size_t>(group->size()) + 128);
      EXPECT_TRUE(optimizer.state().empty());
      const std::lock_guard lock(mutex);
      sum += own;
    });
    EXPECT_EQ(sum, total);
  }
}

TEST(ZeroRedundancyOptimizer, MixesTypesOfParameters) {
  const auto make = [] {
    std::vector<at::Tensor> all;
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kDouble})
      for (const at::Tensor& tensor : formula_parameters(type))
        all.push_back(tensor);
    return all;
  };
  auto expected = make();
  FusedAdam unsharded(expected, AdamOptions(0.01));
  train_by_formula(unsharded, 1, kUpdates);
  run_ranks(kBackend, 3, [&](const Group& group) {
    auto parameters = make();
    ZeroRedundancyOptimizer optimizer(parameters, AdamOptions(0.01),
                                      {.group = group});
    train_by_formula(optimizer, 1, kUpdates);
    EXPECT_TRUE(are_equal(parameters, expected));
  });
}

TEST(ZeroRedundancyOptimizer, FollowsALearningRateSchedule) {
  const auto train = [](torch::optim::Optimizer& optimizer) {
    torch::optim::StepLR schedule(optimizer, 2, 0.5);
    for (int step = 1; step <= 6; ++step) {
      train_by_formula(optimizer, step, step);
      schedule.step();
    }
  };
  auto expected = formula_parameters();
  FusedSGD unsharded(expected, SGDOptions(0.1).momentum(0.9));
  train(unsharded);
  run_ranks(kBackend, 2, [&](const Group& group) {
    auto parameters = formula_parameters();
    ZeroRedundancyOptimizer optimizer(parameters, SGDOptions(0.1).momentum(0.9),
                                      {.group = group});
    train(optimizer);
    EXPECT_TRUE(are_equal(parameters, expected));
  });
}

TEST(ZeroRedundancyOptimizer, ClipsByTheNormOfAllGradients) {
  auto expected = formula_parameters();
  torch::optim::SGD unsharded(expected, SGDOptions(0.05).momentum(0.9));
  std::vector<double> norms;
  for (int step = 1; step <= 10; ++step) {
    set_gradients(expected, step);
    norms.push_back(torch::nn::utils::clip_grad_norm_(expected, 1.5));
    unsharded.step();
  }
  run_ranks(kBackend, 3, [&](const Group& group) {
    auto parameters = formula_parameters();
    ZeroRedundancyOptimizer optimizer(
        parameters, SGDOptions(0.05).momentum(0.9), {.group = group});
    for (int step = 1; step <= 10; ++step) {
      set_gradients(parameters, step);
      for (const at::Tensor& tensor : parameters) tensor.grad().mul_(8);
      optimizer.scale_gradients(1.0 / 8);
      const double norm = norms[static_cast<std::size_t>(step - 1)];
      EXPECT_NEAR(optimizer.clip_grad_norm(1.5), norm, 1e-4 * norm);
      optimizer.step();
    }
    EXPECT_LE(largest_difference(parameters, expected), 1e-5);
  });
}

TEST(ZeroRedundancyOptimizer, ClipsByAnyNorm) {
  constexpr double kLargestEntry = std::numeric_limits<double>::infinity();
  for (const double p : {1.0, 3.0, kLargestEntry}) {
    auto expected = formula_parameters();
    set_gradients(expected, 1);
    const double norm = grad_norm(expected, p);
    run_ranks(kBackend, 3, [&](const Group& group) {
      auto parameters = formula_parameters();
      ZeroRedundancyOptimizer optimizer(parameters, SGDOptions(0.1),
                                        {.group = group});
      set_gradients(parameters, 1);
      EXPECT_NEAR(optimizer.clip_grad_norm(0.5, p), norm, 1e-9 * norm);
      EXPECT_THAT(message_of([&] { optimizer.clip_grad_norm(0.5, 0); }),
                  HasSubstr("use a p above 0"));
      optimizer.step();
      EXPECT_NEAR(
          parameters[0][0][0].item<double>(),
          expected[0][0][0].item<double>() -
              0.1 * 0.5 / norm * expected[0].grad()[0][0].item<double>(),
          1e-6);
    });
  }
}

// Parameters of formula_parameters() from `begin` to `end`.
std::vector<at::Tensor> some_of(const std::vector<at::Tensor>& parameters,
                                std::ptrdiff_t begin, std::ptrdiff_t end) {
  return {parameters.begin() + begin, parameters.begin() + end};
}

// Trains three of seven parameters, then five, then all, each with its own
// rule.
template <class Optimizer>
void train_in_growing_groups(Optimizer& optimizer,
                             const std::vector<at::Tensor>& parameters,
                             const std::function<void(int)>& after_step) {
  const auto train = [&](int first, int last) {
    for (int step = first; step <= last; ++step) {
      train_by_formula(optimizer, step, step);
      after_step(step);
    }
  };
  train(1, 4);
  optimizer.add_param_group(torch::optim::OptimizerParamGroup(
      some_of(parameters, 3, 5), std::make_unique<AdamOptions>(0.005)));
  train(5, 8);
  optimizer.add_param_group(
      torch::optim::OptimizerParamGroup(some_of(parameters, 5, 7)));
  train(9, 12);
}

// Saves the state on one rank, and loads it on all.
void reload(ZeroRedundancyOptimizer& optimizer, ProcessGroup& group) {
  optimizer.consolidate_state_dict(0);
  std::stringstream file;
  if (group.rank() == 0) torch::save(optimizer, file);
  const std::string saved = file.str();
  const Bytes bytes =
      broadcast_bytes(group, std::as_bytes(std::span(saved)), 0);
  file.str({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  torch::load(optimizer, file);
}

TEST_P(ShardingRanks, TakeGroupsThatAreAddedLater) {
  auto expected = formula_parameters();
  FusedAdam unsharded(some_of(expected, 0, 3), AdamOptions(0.01));
  train_in_growing_groups(unsharded, expected, [](int) {});
  for (const bool averages : {false, true})
    run_ranks(GetParam().backend, GetParam().ranks, [&](const Group& group) {
      auto parameters = formula_parameters();
      ZeroRedundancyOptimizer optimizer(
          some_of(parameters, 0, 3), AdamOptions(0.01),
          {.group = group, .averages_gradients = averages});
      // State that is saved and loaded in between fits the existing pieces.
      train_in_growing_groups(optimizer, parameters, [&](int step) {
        if (step % 3 == 0) reload(optimizer, *group);
      });
      EXPECT_LE(largest_difference(parameters, expected), averages ? 1e-6 : 0);
    });
}

TEST(ZeroRedundancyOptimizer, SaysWhenAGroupCannotBeAdded) {
  run_ranks(kBackend, 2, [](const Group& group) {
    auto parameters = formula_parameters();
    const auto rest =
        torch::optim::OptimizerParamGroup(some_of(parameters, 3, 7));
    ZeroRedundancyOptimizer optimizer(some_of(parameters, 0, 3),
                                      SGDOptions(0.1), {.group = group});
    const auto other = torch::optim::OptimizerParamGroup(
        some_of(parameters, 3, 4 + group->rank()));
    EXPECT_THROW(optimizer.add_param_group(other), Mismatch);
    train_by_formula(optimizer, 1, 1);  // as if without the attempt

    const auto hook = optimizer.gradient_hook();
    EXPECT_THAT(message_of([&] { optimizer.add_param_group(rest); }),
                HasSubstr("not those of a new group"));
    torch::optim::Optimizer& as_libtorch_has_it = optimizer;
    as_libtorch_has_it.add_param_group(rest);
    set_gradients(parameters, 2);
    EXPECT_THAT(message_of([&] { optimizer.step(); }),
                HasSubstr("add groups with its own add_param_group()"));
  });
}

TEST(ZeroRedundancyOptimizer, KeepsMomentumThatBeginsLater) {
  const auto train = [](torch::optim::Optimizer& optimizer) {
    train_by_formula(optimizer, 1, 3);
    dynamic_cast<SGDOptions&>(optimizer.param_groups()[0].options())
        .momentum(0.9);
    train_by_formula(optimizer, 4, 6);
  };
  auto expected = formula_parameters();
  torch::optim::SGD unsharded(expected, SGDOptions(0.05).dampening(0.5));
  train(unsharded);
  run_ranks(kBackend, 2, [&](const Group& group) {
    auto parameters = formula_parameters();
    ZeroRedundancyOptimizer optimizer(
        parameters, SGDOptions(0.05).dampening(0.5), {.group = group});
    train(optimizer);
    EXPECT_LE(largest_difference(parameters, expected), 1e-5);
  });
}

TEST(ZeroRedundancyOptimizer, LeavesParametersWithoutGradientsAlone) {
  run_ranks(kBackend, 2, [](const Group& group) {
    auto parameters = formula_parameters();
    ZeroRedundancyOptimizer optimizer(parameters, AdamOptions(0.01),
                                      {.group = group});
    set_gradients(parameters, 1);
    parameters[5].mutable_grad() = at::Tensor();
    optimizer.step();
    EXPECT_TRUE(parameters[5].equal(formula_parameters()[5]));
    EXPECT_FALSE(parameters[6].equal(formula_parameters()[6]));
  });
}

TEST(ZeroRedundancyOptimizer, TellsAutogradThatWeightsHaveChanged) {
  run_ranks(kBackend, 2, [](const Group& group) {
    auto parameters = formula_parameters();
    ZeroRedundancyOptimizer optimizer(parameters, SGDOptions(0.1),
                                      {.group = group});
    // In two pieces: each rank writes to a part of it only.
    const at::Tensor loss = (parameters[5] * parameters[5]).sum();
    set_gradients(parameters, 1);
    optimizer.step();
    EXPECT_THAT(message_of([&] { loss.backward(); }),
                HasSubstr("modified by an inplace operation"));
  });
}

TEST(ZeroRedundancyOptimizer, NamesWhatDiffersBetweenTheRanks) {
  run_ranks(kBackend, 3, [](const Group& group) {
    std::vector<at::Tensor> parameters{wave({3, 4}, 0), wave({7}, 0)};
    if (group->rank() == 2) parameters[1] = wave({8}, 0);
    const std::string text = message_of([&] {
      ZeroRedundancyOptimizer(parameters, SGDOptions(0.1), {.group = group});
    });
    EXPECT_THAT(text, HasSubstr("rank 0:  parameter 1 of group 0: Float [7]"));
    EXPECT_THAT(text, HasSubstr("rank 2:  parameter 1 of group 0: Float [8]"));
    if (group->rank() == 2) parameters.clear();
    EXPECT_THAT(message_of([&] {
                  ZeroRedundancyOptimizer(parameters, SGDOptions(0.1),
                                          {.group = group});
                }),
                HasSubstr("rank 2:  no more parameters"));
  });
}

TEST(ZeroRedundancyOptimizer, RefusesDifferentTensorsInTheSameMemory) {
  run_ranks(kBackend, 2, [](const Group& group) {
    const auto text = [&](const std::vector<at::Tensor>& parameters) {
      return message_of([&] {
        ZeroRedundancyOptimizer(parameters, SGDOptions(0.1), {.group = group});
      });
    };
    const at::Tensor whole = wave({3, 4}, 0);
    const at::Tensor other = wave({4}, 1);
    EXPECT_THAT(text({whole, other, whole[1]}),
                HasSubstr("parameter 2 of group 0 lies in the memory of "
                          "parameter 0 of group 0"));
    EXPECT_THAT(text({whole.narrow(0, 1, 2), other, whole.narrow(0, 0, 2)}),
                HasSubstr("give each memory of its own"));
    EXPECT_EQ(text({whole[2], whole[0], whole[1], other, other}), "no error");
    // On one rank only.
    const at::Tensor last = group->rank() == 0 ? whole[1] : wave({4}, 2);
    EXPECT_THAT(text({whole, last}),
                HasSubstr("strides [1], in the memory of parameter 0 of"));
  });
}

TEST(ZeroRedundancyOptimizer, SaysOnEveryRankWhatItCannotUpdate) {
  run_ranks(kBackend, 2, [](const Group& group) {
    const auto text = [&](std::vector<at::Tensor> parameters,
                          const OptimizerOptions& rule) {
      return message_of(
          [&] { ZeroRedundancyOptimizer(parameters, rule, {.group = group}); });
    };
    EXPECT_THAT(text({}, SGDOptions(0.1)),
                HasSubstr("list of parameters is empty"));
    EXPECT_THAT(text({at::ones({2}, at::kLong)}, SGDOptions(0.1)),
                HasSubstr("only Float, Double, Half and BFloat16"));
    EXPECT_THAT(text({wave({2}, 0)}, AdamOptions(0.1).amsgrad(true)),
                HasSubstr("amsgrad"));
    EXPECT_THAT(text({wave({2}, 0)}, torch::optim::RMSpropOptions(0.1)),
                HasSubstr("only the options of SGD, Adam and AdamW"));
    auto parameters = formula_parameters();
    ZeroRedundancyOptimizer optimizer(parameters, SGDOptions(0.1),
                                      {.group = group});
    set_gradients(parameters, 1);
    parameters[0].mutable_grad() = parameters[0].grad().to_sparse();
    EXPECT_THAT(message_of([&] { optimizer.step(); }),
                HasSubstr("its gradient is sparse"));
    EXPECT_TRUE(are_equal(parameters, formula_parameters()));
  });
}

}  // namespace
}  // namespace lockstep
