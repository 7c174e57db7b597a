#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/adam.h>
#include <torch/optim/schedulers/step_lr.h>

#include "lockstep/base/error.h"
#include "lockstep/torch/horovod.h"
#include "lockstep/torch/optimizers.h"
#include "src/comm/testing/run_ranks.h"
#include "src/torch/testing/parameter_bag.h"
#include "src/torch/testing/recording_group.h"
#include "src/torch/testing/small_nets.h"

namespace lockstep::horovod {
namespace {

using testing::HasSubstr;

torch::optim::SGD sgd(const torch::nn::Module& module) {
  return torch::optim::SGD(
      module.parameters(),
      torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(0.01));
}

// What one process makes of whole batches, `passes` of them before each step,
// with gradients `scale` times as long.
std::vector<at::Tensor> weights_of_one_process(int shares, int steps,
                                               int passes = 1,
                                               double scale = 1) {
  Net net;
  auto optimizer = sgd(net);
  for (int step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    for (int pass = 0; pass < passes; ++pass) {
      const Share batch = share_of_batch(step * passes + pass, 0, 1, shares);
      (loss_of(net.forward(batch.input), batch.target) * scale).backward();
    }
    optimizer.step();
  }
  return net.parameters();
}

TEST(DistributedOptimizer, MakesTheStepsThatOneProcessMakesOfWholeBatches) {
  for (const int ranks : {1, 2, 3, 4}) {
    const auto expected = weights_of_one_process(ranks, 5);
    run_ranks(kBackend, ranks, [&](const Group& group) {
      Net net;
      DistributedOptimizer optimizer(sgd(net), net.named_parameters(),
                                     {.group = group});
      for (int step = 0; step < 5; ++step) {
        optimizer.zero_grad();
        backward(net, *group, step);
        optimizer.step();
      }
      EXPECT_LE(largest_difference(net.parameters(), expected), kTolerance);
    });
  }
}

TEST(DistributedOptimizer, AddsUpGradientsWhereAskedTo) {
  for (const auto compression : {Compression::kNone, Compression::kBf16}) {
    const bool exact = compression == Compression::kNone;
    const auto expected = weights_of_one_process(3, 3, 1, 3);
    run_ranks(kBackend, 3, [&](const Group& group) {
      Net net;
      DistributedOptimizer optimizer(
          sgd(net), net.named_parameters(),
          {.group = group, .compression = compression, .op = ReduceOp::kSum});
      for (int step = 0; step < 3; ++step) {
        optimizer.zero_grad();
        backward(net, *group, step);
        optimizer.step();
      }
      EXPECT_LE(largest_difference(net.parameters(), expected),
                exact ? 3 * kTolerance : 1e-2);
    });
  }
}

TEST(DistributedOptimizer, SendsRoundedGradientsWhereTheyAreCompressed) {
  run_ranks(kBackend, 2, [&](const Group& group) {
    for (const auto compression : {Compression::kFp16, Compression::kBf16}) {
      Net net;
      DistributedOptimizer optimizer(
          sgd(net), net.named_parameters(),
          {.group = group, .compression = compression});
      backward(net, *group);
      const auto type =
          compression == Compression::kFp16 ? torch::kHalf : torch::kBFloat16;
      for (const at::Tensor& gradient : gradients_of(net))
        EXPECT_TRUE(gradient.equal(gradient.to(type).to(torch::kFloat)));
    }
  });
}

TEST(DistributedOptimizer, ReducesTheSumOfSeveralPassesOnce) {
  const auto expected = weights_of_one_process(2, 3, 3);
  run_ranks(kBackend, 2, [&](const Group& group) {
    const RecordingGroup recorded(group);
    Net net;
    DistributedOptimizer optimizer(
        sgd(net), net.named_parameters(),
        {.group = recorded.group(), .backward_passes_per_step = 3});
    recorded.take_events();
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      backward(net, *group, 3 * step);
      backward(net, *group, 3 * step + 1);
      EXPECT_TRUE(recorded.take_events().empty());
      backward(net, *group, 3 * step + 2);
      EXPECT_FALSE(recorded.take_events().empty());
      optimizer.step();
      EXPECT_TRUE(recorded.take_events().empty());
    }
    EXPECT_LE(largest_difference(net.parameters(), expected), kTolerance);
  });
}

TEST(DistributedOptimizer, StepsAfterFewerPassesOnWhatThereIs) {
  const auto expected = weights_of_one_process(2, 2, 2);
  run_ranks(kBackend, 2, [&](const Group& group) {
    Net net;
    DistributedOptimizer optimizer(
        sgd(net), net.named_parameters(),
        {.group = group, .backward_passes_per_step = 4});
    for (int step = 0; step < 2; ++step) {
      optimizer.zero_grad();
      backward(net, *group, 2 * step);
      backward(net, *group, 2 * step + 1);
      optimizer.step();
    }
    EXPECT_LE(largest_difference(net.parameters(), expected), kTolerance);
  });
}

TEST(DistributedOptimizer, LetsARankWithoutAPassTakeWhatTheOthersBring) {
  run_ranks(kBackend, 2, [&](const Group& group) {
    Net net;
    DistributedOptimizer optimizer(sgd(net), net.named_parameters(),
                                   {.group = group, .op = ReduceOp::kSum});
    if (group->rank() == 0) backward(net, *group);
    optimizer.step();
    Net alone;
    auto plain = sgd(alone);
    const Share share = share_of_batch(0, 0, 2, 2);
    loss_of(alone.forward(share.input), share.target).backward();
    plain.step();
    EXPECT_LE(largest_difference(net.parameters(), alone.parameters()),
              kTolerance);
  });
}

TEST(DistributedOptimizer, LeavesOutWhatNoRankHasUsed) {
  run_ranks(kBackend, 2, [&](const Group& group) {
    Net net;
    DistributedOptimizer optimizer(sgd(net), net.named_parameters(),
                                   {.group = group});
    const at::Tensor before = net.third->weight.detach().clone();
    torch::tanh(net.first(torch::ones({1, 6}))).sum().backward();
    optimizer.step();
    EXPECT_FALSE(net.third->weight.grad().defined());
    EXPECT_TRUE(net.third->weight.equal(before));
  });
}

TEST(DistributedOptimizer, ShowsGradientsOfAllRanksBeforeTheStep) {
  const auto expected = gradients_of_one_process(2);
  run_ranks(kBackend, 2, [&](const Group& group) {
    Net net;
    DistributedOptimizer optimizer(sgd(net), net.named_parameters(),
                                   {.group = group});
    backward(net, *group);
    EXPECT_LE(largest_difference(gradients_of(net), expected), kTolerance);
    optimizer.synchronize();  // as Horovod's programs do; nothing is left to do
    EXPECT_LE(largest_difference(gradients_of(net), expected), kTolerance);
  });
}

TEST(DistributedOptimizer, TakesTheGradientsOfAClosure) {
  const auto expected = weights_of_one_process(2, 3);
  run_ranks(kBackend, 2, [&](const Group& group) {
    Net net;
    DistributedOptimizer optimizer(sgd(net), net.named_parameters(),
                                   {.group = group});
    for (int step = 0; step < 3; ++step)
      optimizer.step([&] {
        optimizer.zero_grad();
        const Share share = share_of_batch(step, group->rank(), 2, 2);
        const at::Tensor loss = loss_of(net.forward(share.input), share.target);
        loss.backward();
        return loss;
      });
    EXPECT_LE(largest_difference(net.parameters(), expected), kTolerance);
  });
}

TEST(DistributedOptimizer, TakesAClosureWithFewerPassesThanAStep) {
  const auto expected = weights_of_one_process(2, 2);
  run_ranks(kBackend, 2, [&](const Group& group) {
    Net net;
    DistributedOptimizer optimizer(
        sgd(net), net.named_parameters(),
        {.group = group, .backward_passes_per_step = 2});
    for (int step = 0; step < 2; ++step)
      optimizer.step([&] {
        optimizer.zero_grad();
        backward(net, *group, step);
        return torch::zeros({});
      });
    EXPECT_LE(largest_difference(net.parameters(), expected), kTolerance);
  });
}

TEST(DistributedOptimizer, IsWhatSchedulersTake) {
  run_ranks(kBackend, 1, [&](const Group& group) {
    Net net;
    DistributedOptimizer optimizer(torch::optim::Adam(net.parameters(), 0.5),
                                   net.named_parameters(), {.group = group});
    torch::optim::StepLR schedule(optimizer, 1, 0.1);
    optimizer.step();
    schedule.step();  // counts from 0: changes nothing yet
    schedule.step();
    EXPECT_DOUBLE_EQ(optimizer.param_groups()[0].options().get_lr(), 0.05);
  });
}

// One step of sums of a parameter bag's: a rank's passes use the parameters of
// one text each, and factors that grow from pass to pass and rank to rank.
std::vector<double> gradients_after_passes(
    const Group& group, const std::vector<std::vector<std::string>>& passes,
    int passes_per_step) {
  ParameterBag bag("ab");
  DistributedOptimizer optimizer(
      torch::optim::SGD(bag.parameters(), 0.0), bag.named_parameters(),
      {.group = group, .backward_passes_per_step = passes_per_step});
  std::vector<double> gradients;
  for (int step = 0; step < 2; ++step) {
    optimizer.zero_grad();
    double factor = 1 + 10 * group->rank();
    for (const std::string& letters :
         passes[static_cast<std::size_t>(group->rank())])
      bag.forward(letters, factor++).backward();
    optimizer.step();
    gradients = bag.gradients();
  }
  return gradients;
}

TEST(DistributedOptimizer, CountsPassesForEachParameter) {
  run_ranks(kBackend, 2, [](const Group& group) {
    const auto after = [&](const std::vector<std::vector<std::string>>& passes,
                           int passes_per_step) {
      return gradients_after_passes(group, passes, passes_per_step);
    };
    using testing::ElementsAre;
    EXPECT_THAT(after({{"a", "b"}, {"a", "b"}}, 1), ElementsAre(6, 7));
    EXPECT_THAT(after({{"a", "b"}, {"b", "a"}}, 1), ElementsAre(6.5, 6.5));
    EXPECT_THAT(after({{"a", "b"}, {"ab"}}, 1), ElementsAre(6, 6.5));
    EXPECT_THAT(after({{"ab"}, {"a", "b"}}, 1), ElementsAre(6, 6.5));
    EXPECT_THAT(after({{"a", "b"}, {"a"}}, 1), ElementsAre(6, 1));
    EXPECT_THAT(after({{"a", "b", "a", "b"}, {"a", "b", "a", "b"}}, 2),
                ElementsAre(14, 16));
    EXPECT_THAT(after({{"a", "b", "a", "b"}, {"ab", "ab"}}, 2),
                ElementsAre(13.5, 14.5));
  });
}

TEST(DistributedOptimizer, RefusesAParameterInAPassMoreThanAStepTakes) {
  run_ranks(kBackend, 2, [](const Group& group) {
    ParameterBag bag("ab");
    DistributedOptimizer optimizer(torch::optim::SGD(bag.parameters(), 0.1),
                                   bag.named_parameters(), {.group = group});
    bag.forward("a", 1).backward();
    EXPECT_THAT(message_of([&] { bag.forward("a", 1).backward(); }),
                HasSubstr("parameter a is in a backward pass more than the 1"));
    EXPECT_THAT(message_of([&] { optimizer.step(); }),
                HasSubstr("part of a backward pass that was refused"));
    optimizer.zero_grad();
    bag.forward("ab", group->rank()).backward();
    EXPECT_THAT(bag.gradients(), testing::ElementsAre(0.5, 0.5));
  });
}

TEST(DistributedOptimizer, MakesNoStepOfAFurtherPassThatEndedHalfway) {
  run_ranks(kBackend, 2, [](const Group& group) {
    ParameterBag bag("ab");
    DistributedOptimizer optimizer(torch::optim::SGD(bag.parameters(), 0.1),
                                   bag.named_parameters(), {.group = group});
    bag.forward("a", 1).backward();
    // Computed before the parameter's part, so its gradient comes after.
    const at::Tensor other = torch::ones({1}, at::requires_grad()) * 1;
    other.register_hook(
        [](const at::Tensor&) { throw std::runtime_error("halfway"); });
    const at::Tensor loss = bag.forward("b", 1) + other.sum();
    EXPECT_THAT(message_of([&] { loss.backward(); }), HasSubstr("halfway"));
    EXPECT_THAT(message_of([&] { optimizer.step(); }),
                HasSubstr("ended by an exception"));
    optimizer.zero_grad();
    bag.forward("ab", group->rank()).backward();
    EXPECT_THAT(bag.gradients(), testing::ElementsAre(0.5, 0.5));
  });
}

TEST(DistributedOptimizer, RefusesAddingToASumThatIsReduced) {
  run_ranks(kBackend, 2, [](const Group& group) {
    ParameterBag bag("ab");
    DistributedOptimizer optimizer(torch::optim::SGD(bag.parameters(), 0.1),
                                   bag.named_parameters(),
                                   {.group = group, .op = ReduceOp::kSum});
    bag.forward("a", 1).backward();
    EXPECT_THAT(message_of([&] { bag.forward("b", 1).backward(); }),
                HasSubstr("a backward pass more than the 1"));
  });
}

// What a GradientScaler leaves out.
TEST(DistributedOptimizer, CountsAnewAfterSynchronizeWithoutAStep) {
  run_ranks(kBackend, 2, [](const Group& group) {
    for (const int passes : {1, 2}) {
      Net net;
      DistributedOptimizer optimizer(
          sgd(net), net.named_parameters(),
          {.group = group, .backward_passes_per_step = passes});
      for (int step = 0; step < 3; ++step) {
        net.zero_grad();  // which the optimizer does not hear of
        for (int pass = 0; pass < passes; ++pass) backward(net, *group);
        optimizer.synchronize();
        auto expected = gradients_of_one_process(2);
        for (at::Tensor& gradient : expected) gradient *= passes;
        EXPECT_LE(largest_difference(gradients_of(net), expected),
                  passes * kTolerance);
      }
      EXPECT_NO_THROW(optimizer.step());
    }
  });
}

// The gradient fits into float32, but not into what travels.
TEST(DistributedOptimizer, ShowsAScalerTheOverflowOfItsCompression) {
  run_ranks(kBackend, 2, [](const Group& group) {
    ParameterBag bag("a");
    DistributedOptimizer optimizer(torch::optim::SGD(bag.parameters(), 0.1),
                                   bag.named_parameters(),
                                   {.group = group,
                                    .compression = Compression::kFp16,
                                    .backward_passes_per_step = 2});
    GradientScaler scaler({.group = group, .init_scale = 1});
    bag.forward("a", 1e5).backward();
    EXPECT_FALSE(scaler.step(optimizer));
    scaler.update();
    EXPECT_LT(scaler.get_scale(), 1);
  });
}

TEST(DistributedOptimizer, DividesBeforeAndAfterTheSum) {
  run_ranks(kBackend, 2, [](const Group& group) {
    ParameterBag bag("ab");
    const auto average_of = [&](double factor, double gradient,
                                Compression compression) {
      DistributedOptimizer optimizer(torch::optim::SGD(bag.parameters(), 0.1),
                                     bag.named_parameters(),
                                     {.group = group,
                                      .compression = compression,
                                      .gradient_predivide_factor = factor});
      optimizer.zero_grad();
      bag.forward("ab", gradient * (1 + group->rank())).backward();
      return bag.gradients()[0];
    };
    for (const double factor : {0.5, 1.0, 2.0, 4.0})
      for (const auto compression : {Compression::kNone, Compression::kFp16})
        EXPECT_EQ(average_of(factor, 4, compression), 6);
    // The sum, 86,016, is no float16; a 32nd of it is.
    EXPECT_EQ(average_of(32, 28672, Compression::kFp16), 43008);
  });
}

// Rows of a table that the ranks share only in part.
struct SparseTable : torch::nn::Module {
  SparseTable() {
    table = register_parameter("table", wave({6, 2}, 1));
    unused = register_parameter("unused", wave({2}, 2));
  }
  at::Tensor forward(const Group& group, bool sparse) {
    const at::Tensor words = torch::arange(3) + 2 * group->rank();
    return at::embedding(table, words, -1, false, sparse).square().sum();
  }
  at::Tensor table, unused;
};

void expect_sparse_gradients_as_dense(int ranks) {
  run_ranks(kBackend, ranks, [](const Group& group) {
    for (const int passes : {1, 2}) {
      SparseTable sparse, dense;
      for (SparseTable* net : {&sparse, &dense}) {
        DistributedOptimizer optimizer(sgd(*net), net->named_parameters(),
                                       {.group = group,
                                        .backward_passes_per_step = passes,
                                        .sparse_as_dense = true});
        for (int step = 0; step < 3; ++step) {
          optimizer.zero_grad();
          for (int pass = 0; pass < passes; ++pass)
            net->forward(group, net == &sparse).backward();
          EXPECT_EQ(net->table.grad().layout(), at::kStrided);
          optimizer.step();
        }
      }
      EXPECT_EQ(largest_difference(sparse.parameters(), dense.parameters()), 0);
    }
  });
}

TEST(DistributedOptimizer, TakesSparseGradientsAsDenseOnes) {
  for (const int ranks : {1, 2}) expect_sparse_gradients_as_dense(ranks);
}

TEST(DistributedOptimizer, RefusesAPassMoreThanAStepTakes) {
  run_ranks(kBackend, 2, [&](const Group& group) {
    Net net;
    DistributedOptimizer optimizer(sgd(net), net.named_parameters(),
                                   {.group = group});
    backward(net, *group);
    EXPECT_THAT(message_of([&] { backward(net, *group); }),
                HasSubstr("a backward pass more than the 1 that a step takes"));
    optimizer.zero_grad();
    backward(net, *group);
    EXPECT_LE(
        largest_difference(gradients_of(net), gradients_of_one_process(2)),
        kTolerance);
  });
}

TEST(DistributedOptimizer, MakesNoStepOfARefusedPass) {
  run_ranks(kBackend, 2, [&](const Group& group) {
    Net net;
    DistributedOptimizer optimizer(sgd(net), net.named_parameters(),
                                   {.group = group});
    backward(net, *group);
    EXPECT_THAT(message_of([&] { backward(net, *group); }),
                HasSubstr("a backward pass more"));
    EXPECT_THAT(message_of([&] { optimizer.step(); }),
                HasSubstr("a backward pass that was refused"));
    optimizer.zero_grad();
    const at::Tensor loss = net.forward(torch::ones({1, 6})).sum();
    EXPECT_THAT(message_of([&] {
                  loss.backward({}, std::nullopt, /*create_graph=*/true);
                }),
                HasSubstr("create_graph"));
    net.zero_grad();
    backward(net, *group);
    EXPECT_LE(
        largest_difference(gradients_of(net), gradients_of_one_process(2)),
        kTolerance);
  });
}

// What a step says after `change` to a net of which the first weight is frozen.
std::string refusal_after(const std::function<void(Net&)>& change) {
  std::string refusal;
  run_ranks(kBackend, 1, [&](const Group& group) {
    Net net;
    net.first->weight.requires_grad_(false);
    DistributedOptimizer optimizer(sgd(net), net.named_parameters(),
                                   {.group = group});
    optimizer.step();
    change(net);
    refusal = message_of([&] { optimizer.step(); });
  });
  return refusal;
}

TEST(DistributedOptimizer, NoticesParametersThatAreTrainedLater) {
  EXPECT_THAT(
      refusal_after([](Net& net) { net.first->weight.requires_grad_(true); }),
      HasSubstr("parameter first.weight is trained now"));
}

TEST(DistributedOptimizer, NoticesParametersThatAreFrozenLater) {
  EXPECT_THAT(
      refusal_after([](Net& net) { net.third->bias.requires_grad_(false); }),
      HasSubstr("parameter third.bias is trained no more"));
}

TEST(DistributedOptimizer, NoticesOneFrozenWhereAnotherIsTrainedInstead) {
  EXPECT_THAT(refusal_after([](Net& net) {
                net.first->weight.requires_grad_(true);
                net.third->bias.requires_grad_(false);
              }),
              HasSubstr("parameter first.weight is trained now"));
}

TEST(DistributedOptimizer, PairsGradientsByTheirNames) {
  run_ranks(kBackend, 2, [&](const Group& group) {
    ParameterBag bag(group->rank() == 0 ? "ab" : "ba");
    DistributedOptimizer optimizer(torch::optim::SGD(bag.parameters(), 0.1),
                                   bag.named_parameters(), {.group = group});
    for (int step = 0; step < 2; ++step) {
      optimizer.zero_grad();
      (bag.forward("a", 1) + bag.forward("b", 100)).backward();
      EXPECT_TRUE(all_are(bag['a'].grad(), 1));
      EXPECT_TRUE(all_are(bag['b'].grad(), 100));
      optimizer.step();
    }
  });
}

// What all of two ranks are told, of which rank 1 has a net that was changed,
// or other options.
void expect_mismatch_with(
    const std::string& line_of_rank_1,
    const std::function<void(Net&, DistributedOptimizerOptions&)>& change) {
  run_ranks(kBackend, 2, [&](const Group& group) {
    Net net;
    DistributedOptimizerOptions options{.group = group};
    if (group->rank() == 1) change(net, options);
    const auto make = [&] {
      DistributedOptimizer(sgd(net), net.named_parameters(), options);
    };
    EXPECT_THROW(make(), Mismatch);
    EXPECT_THAT(message_of(make), HasSubstr("rank 1:  " + line_of_rank_1));
    EXPECT_NO_THROW(group->barrier().wait());
  });
}

TEST(DistributedOptimizer, TellsEveryRankHowTheirParametersDiffer) {
  expect_mismatch_with("parameter third.bias Float [4]\n", [](Net& net, auto&) {
    net.third->bias.set_data(torch::zeros({4}));
  });
  expect_mismatch_with(
      "parameter first.weight Float [8, 6]\n",
      [](Net& net, auto&) { net.first->bias.requires_grad_(false); });
  expect_mismatch_with("backward_passes_per_step 2\n",
                       [](Net&, DistributedOptimizerOptions& options) {
                         options.backward_passes_per_step = 2;
                       });
}

TEST(DistributedOptimizer, TellsEveryRankOfAParameterWithoutANameOnOne) {
  run_ranks(kBackend, 2, [&](const Group& group) {
    Net net, other;
    const Net& named = group->rank() == 0 ? net : other;
    EXPECT_THAT(message_of([&] {
                  DistributedOptimizer(sgd(net), named.named_parameters(),
                                       {.group = group});
                }),
                HasSubstr("rank 1:  refused: DistributedOptimizer: parameter 1 "
                          "of the optimizer is not among the 6 named ones\n"));
    EXPECT_NO_THROW(group->barrier().wait());
  });
}

TEST(DistributedOptimizer, RefusesWhatCannotWork) {
  run_ranks(kBackend, 2, [&](const Group& group) {
    Net net, other;
    const auto refusal = [&](const Net& named,
                             DistributedOptimizerOptions options) {
      options.group = group;
      return message_of([&] {
        DistributedOptimizer(sgd(net), named.named_parameters(), options);
      });
    };
    EXPECT_THAT(refusal(other, {}),
                HasSubstr("parameter 1 of the optimizer is not among the 6"));
    EXPECT_THAT(refusal(net, {.backward_passes_per_step = 0}),
                HasSubstr("the least is 1"));
    EXPECT_THAT(refusal(net, {.gradient_predivide_factor = 0}),
                HasSubstr("gradient_predivide_factor is 0"));
    EXPECT_THAT(
        refusal(net, {.op = ReduceOp::kSum, .gradient_predivide_factor = 2}),
        HasSubstr("is part of an average"));
    EXPECT_THAT(refusal(net, {.op = ReduceOp::kMax}),
                HasSubstr("averaged or added up"));
  });
}

}  // namespace
}  // namespace lockstep::horovod
