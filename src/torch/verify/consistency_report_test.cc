// Training loops with one deliberate error each, and the report's verdict on
// them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>

#include "lockstep/base/error.h"
#include "lockstep/torch/consistency.h"
#include "lockstep/torch/distributed_data_parallel.h"
#include "lockstep/torch/sync_batch_norm.h"
#include "src/comm/testing/run_ranks.h"
#include "src/torch/testing/recording_group.h"
#include "src/torch/testing/small_nets.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

using Report = ConsistencyReport;
using NetUnderDdp = DistributedDataParallel<Net>;

NetUnderDdp wrapped_net(const Group& group) {
  return NetUnderDdp(std::make_shared<Net>(), small_buckets(group));
}

// A step as in the report's header. `model` is a module or a wrapper;
// `after_backward` and `at_step` are the places for errors.
struct Places {
  std::function<void()> after_backward = [] {};
  std::function<void(torch::optim::Optimizer&)> at_step =
      [](torch::optim::Optimizer& optimizer) { optimizer.step(); };
  std::function<void()> after_step = [] {};
};
template <class Model>
void watched_step(Model& model, torch::optim::Optimizer& optimizer,
                  Report& report, const Share& share,
                  const Places& places = {}) {
  optimizer.zero_grad();
  report.data(share.input);
  const at::Tensor output = model.forward(share.input);
  report.outputs(output);
  const at::Tensor loss = loss_of(output, share.target);
  report.loss(loss);
  loss.backward();
  places.after_backward();
  report.gradients();
  places.at_step(optimizer);
  places.after_step();
  report.step_done();
}

Share own_share(int step, const Group& group) {
  return share_of_batch(step, group->rank(), group->size(), group->size());
}

template <class Model>
void watched_steps(Model& model, Report& report, const Group& group,
                   const Places& places = {}) {
  torch::optim::SGD optimizer(model.parameters(), 0.1);
  for (int step = 0; !report.done(); ++step)
    watched_step(model, optimizer, report, own_share(step, group), places);
}

// The first wrong row, and its step.
std::string first_wrong(const Report& report) {
  for (const ConsistencyRow& row : report.rows())
    if (!row.right)
      return row.what + " in " + std::to_string(row.step) + ": " + row.found;
  return "none";
}

// An empty one if the report has no verdict.
ConsistencyVerdict verdict_of(const Report& report) {
  return report.verdict().value_or(ConsistencyVerdict());
}

TEST(ConsistencyReport, FindsNothingWrongWhereNothingIs) {
  for (const int ranks : {1, 2, 4})
    run_ranks(kBackend, ranks, [&](const Group& group) {
      auto model = wrapped_net(group);
      Report report(model.module(), {.group = group, .steps = 2});
      watched_steps(model, report, group);
      EXPECT_EQ(first_wrong(report), "none");
      EXPECT_TRUE(report.consistent());
      EXPECT_THAT(report.take_text(),
                  HasSubstr("the ranks are consistent, as far as step 2"));
      EXPECT_THAT(report.take_text(), IsEmpty());
    });
}

TEST(ConsistencyReport, IsATableWithColumnsForTheFirstAndForLaterSteps) {
  run_ranks(kBackend, 2, [](const Group& group) {
    auto model = wrapped_net(group);
    Report report(model.module(), {.group = group, .steps = 3});
    watched_steps(model, report, group);
    EXPECT_EQ(
        report.take_text(),
        "consistency of 2 ranks     must be    at start  step 1     "
        "steps 2 to 3\n"
        "  initial weights          equal      equal\n"
        "  random number generator  either     equal     equal      equal\n"
        "  data                     different            different  "
        "different\n"
        "  outputs                  different            different  "
        "different\n"
        "  loss                     different            different  "
        "different\n"
        "  gradients of each rank   different            different  "
        "different\n"
        "  gradients, reduced       equal                equal      equal\n"
        "  updated weights          equal                equal      equal\n"
        "verdict: the ranks are consistent, as far as step 3\n");
  });
}

TEST(ConsistencyReport, ShowsTheTableSoFarWhereSomethingIsWrongAndAllAtTheEnd) {
  run_ranks(kBackend, 2, [](const Group& group) {
    auto model = wrapped_net(group);
    Report report(model.module(), {.group = group, .steps = 4});
    torch::optim::SGD optimizer(model.parameters(), 0.1);
    for (int step = 0; step < 4; ++step) {
      // Both ranks read the same in step 3.
      watched_step(model, optimizer, report,
                   share_of_batch(step, step == 2 ? 0 : group->rank(), 2, 2));
      const std::string text = report.take_text();
      if (step == 2)
        EXPECT_THAT(text, AllOf(HasSubstr("step 1     steps 2 to 3\n"),
                                HasSubstr("different  equal in step 3  "
                                          "<-- WRONG\n"),
                                HasSubstr("consistent: data, in step 3")));
      else if (step == 3)
        EXPECT_THAT(text, AllOf(HasSubstr("step 1     steps 2 to 4\n"),
                                HasSubstr("different  equal in step 3  "
                                          "<-- WRONG\n"),
                                Not(HasSubstr("verdict"))));
      else
        EXPECT_THAT(text, IsEmpty());
    }
  });
}

TEST(ConsistencyReport, BeginsBeforeTheModuleIsWrapped) {
  run_ranks(kBackend, 2, [](const Group& group) {
    const auto net = std::make_shared<Net>();
    {
      const torch::NoGradGuard no_grad;
      net->second->weight[4][2] += group->rank();
    }
    Report report(
        net,
        {.group = group, .steps = 1, .initial_weights = Expected::kEither});
    NetUnderDdp model(net, small_buckets(group));
    watched_steps(model, report, group);
    EXPECT_EQ(first_wrong(report), "none");
    EXPECT_THAT(
        report.take_text(),
        AllOf(HasSubstr("  initial weights          either     different\n"),
              HasSubstr("  weights, wrapped         equal                 "
                        "equal\n"),
              HasSubstr("  gradients of each rank   different             "
                        "different\n"),
              HasSubstr("initial weights differed: wrapping the module "
                        "copied rank 0's to all ranks\n"),
              HasSubstr("the ranks are consistent, as far as step 1")));
  });
}

TEST(ConsistencyReport, FindsThatAModuleWasNotWrappedAfterItBegan) {
  run_ranks(kBackend, 2, [](const Group& group) {
    const auto net = std::make_shared<Net>();
    {
      const torch::NoGradGuard no_grad;
      net->second->weight[4][2] += group->rank();
    }
    Report report(
        net,
        {.group = group, .steps = 1, .initial_weights = Expected::kEither});
    watched_steps(*net, report, group);
    EXPECT_EQ(first_wrong(report), "weights, wrapped in 1: different");
    EXPECT_THAT(verdict_of(report).where, HasSubstr("second.weight[4, 2] is"));
    EXPECT_THAT(verdict_of(report).likely, HasSubstr("was not wrapped"));
    EXPECT_THAT(report.take_text(), Not(HasSubstr("copied rank 0's")));
  });
}

TEST(ConsistencyReport, FindsAnUnequalStart) {
  run_ranks(kBackend, 3, [](const Group& group) {
    auto model = wrapped_net(group);
    {
      const torch::NoGradGuard no_grad;
      if (group->rank() == 1) model->second->weight[4][2] += 0.5;
    }
    Report report(model.module(), {.group = group, .steps = 1});
    EXPECT_EQ(first_wrong(report), "initial weights in 0: equal on ranks 0, 2");
    EXPECT_THAT(verdict_of(report).where,
                AllOf(HasSubstr("second.weight[4, 2] is "),
                      HasSubstr(" on rank 1 and "), HasSubstr("at most 0.5")));
    EXPECT_THAT(report.take_text(),
                AllOf(HasSubstr("equal on ranks 0, 2  <-- WRONG"),
                      HasSubstr("verdict: the ranks are not consistent: "
                                "initial weights, before step 1"),
                      HasSubstr("likely:  the module was not wrapped yet")));
  });
}

TEST(ConsistencyReport, FindsEqualDataOnTwoRanks) {
  run_ranks(kBackend, 3, [](const Group& group) {
    auto model = wrapped_net(group);
    Report report(model.module(), {.group = group, .steps = 2});
    torch::optim::SGD optimizer(model.parameters(), 0.1);
    watched_step(model, optimizer, report, own_share(0, group));
    EXPECT_TRUE(report.consistent());
    // Rank 2 reads the samples of rank 0.
    watched_step(model, optimizer, report,
                 share_of_batch(1, group->rank() % 2, 3, 3));
    EXPECT_EQ(first_wrong(report), "data in 2: equal on ranks 0, 2");
    EXPECT_EQ(verdict_of(report).where,
              "ranks 0, 2 have read the same samples");
    EXPECT_THAT(verdict_of(report).likely, HasSubstr("no DistributedSampler"));
    EXPECT_EQ(verdict_of(report).what, "data");
  });
}

TEST(ConsistencyReport, FindsAGradientThatIsNotReduced) {
  // The last layer is outside the wrapped module.
  struct Whole : torch::nn::Module {
    explicit Whole(const Group& group) {
      head = register_module("head", torch::nn::Linear(3, 3));
      fill(*this, 1);
      const auto net = register_module("net", std::make_shared<Net>());
      model.emplace(net, small_buckets(group));
    }
    at::Tensor forward(const at::Tensor& input) {
      return head(model->forward(input));
    }
    torch::nn::Linear head{nullptr};
    std::optional<NetUnderDdp> model;
  };
  run_ranks(kBackend, 2, [](const Group& group) {
    const auto whole = std::make_shared<Whole>(group);
    Report report(whole, {.group = group, .steps = 1});
    watched_steps(*whole, report, group);
    EXPECT_EQ(first_wrong(report), "gradients, reduced in 1: different");
    EXPECT_THAT(verdict_of(report).where,
                AllOf(HasSubstr("head.weight[0, 0] is"),
                      HasSubstr("1 tensor more differs")));
    EXPECT_THAT(verdict_of(report).likely,
                AllOf(HasSubstr("the gradient of head.weight was not reduced"),
                      HasSubstr("not part of the wrapped module")));
    // The weights differ as a consequence.
    EXPECT_FALSE(report.rows()[7].right);
    EXPECT_EQ(report.rows()[7].what, "updated weights");
  });
}

TEST(ConsistencyReport, FindsThatNoGradientIsReduced) {
  run_ranks(kBackend, 2, [](const Group& group) {
    const auto bare = std::make_shared<Net>();
    Report of_bare(bare, {.group = group, .steps = 1});
    watched_steps(*bare, of_bare, group);
    auto model = wrapped_net(group);
    Report in_no_sync(model.module(), {.group = group, .steps = 1});
    {
      const auto scope = model.no_sync();
      watched_steps(model, in_no_sync, group);
    }
    for (const Report* report : {&of_bare, &in_no_sync}) {
      EXPECT_EQ(verdict_of(*report).what, "gradients, reduced");
      EXPECT_THAT(verdict_of(*report).likely,
                  HasSubstr("no gradient was reduced"));
    }
  });
}

TEST(ConsistencyReport, FindsThatTheLastOfSeveralPassesStayedLocal) {
  for (const int first_local : {0, 2})
    run_ranks(kBackend, 2, [&](const Group& group) {
      auto model = wrapped_net(group);
      Report report(model.module(), {.group = group, .steps = 1});
      const auto pass = [&](int number) {
        const Share share = own_share(number, group);
        loss_of(model(share.input), share.target).backward();
      };
      for (int i = 0; i < first_local; ++i) pass(i);
      const auto scope = model.no_sync();
      for (int i = first_local; i < 3; ++i) pass(i);
      report.gradients();
      EXPECT_EQ(verdict_of(report).what, "gradients, reduced");
      EXPECT_THAT(verdict_of(report).likely,
                  AllOf(HasSubstr("no gradient was reduced"),
                        HasSubstr("the last pass ran within no_sync()")));
    });
}

TEST(ConsistencyReport, FindsGradientsThatAreChangedOnOneRank) {
  run_ranks(kBackend, 3, [](const Group& group) {
    auto model = wrapped_net(group);
    Report report(model.module(), {.group = group, .steps = 1});
    Places places;
    places.after_backward = [&] {
      if (group->rank() == 0) model->third->bias.mutable_grad().mul_(2);
    };
    watched_steps(model, report, group, places);
    EXPECT_EQ(first_wrong(report),
              "gradients, reduced in 1: equal on ranks 1, 2");
    EXPECT_THAT(verdict_of(report).where, HasSubstr("third.bias[0] is "));
    EXPECT_THAT(verdict_of(report).where, HasSubstr(" on rank 0 and "));
    EXPECT_THAT(verdict_of(report).likely,
                HasSubstr("changed after backward()"));
  });
}

TEST(ConsistencyReport, FindsAnOptimizersStepThatIsSkippedOnOneRank) {
  run_ranks(kBackend, 3, [](const Group& group) {
    auto model = wrapped_net(group);
    Report report(model.module(), {.group = group, .steps = 3});
    int step = 0;
    Places places;
    places.at_step = [&](torch::optim::Optimizer& optimizer) {
      if (++step != 2 || group->rank() != 2) optimizer.step();
    };
    watched_steps(model, report, group, places);
    EXPECT_EQ(first_wrong(report), "updated weights in 2: equal on ranks 0, 1");
    EXPECT_EQ(verdict_of(report).step, 2);
    EXPECT_THAT(verdict_of(report).where, HasSubstr(" on rank 2 and "));
    EXPECT_THAT(verdict_of(report).likely,
                HasSubstr("step was skipped on rank 2, where"));
  });
}

TEST(ConsistencyReport, FindsOptimizersThatAreNotTheSame) {
  run_ranks(kBackend, 2, [](const Group& group) {
    auto model = wrapped_net(group);
    Report report(model.module(), {.group = group, .steps = 1});
    torch::optim::SGD optimizer(model.parameters(),
                                group->rank() == 0 ? 0.1 : 0.2);
    watched_step(model, optimizer, report, own_share(0, group));
    EXPECT_EQ(verdict_of(report).what, "updated weights");
    EXPECT_THAT(verdict_of(report).likely,
                HasSubstr("the optimizers are not the same"));
  });
}

TEST(ConsistencyReport, FindsAModelThatDoesNotLookAtItsData) {
  struct Blind : torch::nn::Module {
    at::Tensor forward(const at::Tensor&) { return weight * 2; }
    at::Tensor weight = register_parameter("weight", torch::ones({3}));
  };
  run_ranks(kBackend, 2, [](const Group& group) {
    auto model =
        DistributedDataParallel(std::make_shared<Blind>(), {.group = group});
    Report report(model.module(), {.group = group, .steps = 1});
    watched_steps(model, report, group);
    EXPECT_EQ(first_wrong(report), "outputs in 1: equal");
    EXPECT_THAT(verdict_of(report).likely, HasSubstr("does not use its input"));
  });
}

struct MaskedNet : torch::nn::Module {
  at::Tensor forward(const at::Tensor& input) { return layer(input * mask); }
  torch::nn::Linear layer = register_module("layer", torch::nn::Linear(6, 3));
  at::Tensor mask = register_buffer("mask", torch::ones({6}));
};

TEST(ConsistencyReport, TellsADivergenceFromAWrongModel) {
  run_ranks(kBackend, 2, [](const Group& group) {
    auto model = wrapped_net(group);
    const auto spoil = [&](torch::optim::Optimizer&) {
      const at::NoGradGuard no_grad;
      for (at::Tensor& parameter : model->parameters())
        parameter.fill_(std::numeric_limits<double>::quiet_NaN());
    };
    Report report(model.module(), {.group = group, .steps = 2});
    watched_steps(model, report, group, {.at_step = spoil});
    EXPECT_EQ(first_wrong(report), "outputs in 2: equal");
    EXPECT_THAT(verdict_of(report).where, HasSubstr("are not finite"));
    EXPECT_THAT(verdict_of(report).likely, HasSubstr("diverged"));
    EXPECT_THAT(verdict_of(report).next, HasSubstr("learning rate"));
  });
}

TEST(ConsistencyReport, TellsADivergenceByTheLossOrByTheGradientsAlone) {
  for (const bool tells_loss : {true, false})
    run_ranks(kBackend, 2, [&](const Group& group) {
      auto model = wrapped_net(group);
      Report report(model.module(), {.group = group, .steps = 1});
      const Share share = own_share(0, group);
      report.data(share.input);
      const at::Tensor loss =
          loss_of(model.forward(share.input), share.target) *
          std::numeric_limits<double>::quiet_NaN();
      if (tells_loss) report.loss(loss);
      loss.backward();
      report.gradients();
      report.step_done();
      EXPECT_EQ(first_wrong(report),
                tells_loss ? "loss in 1: equal"
                           : "gradients of each rank in 1: equal");
      EXPECT_THAT(verdict_of(report).likely, HasSubstr("diverged"));
    });
}

TEST(ConsistencyReport, FindsABufferThatDiffers) {
  run_ranks(kBackend, 3, [](const Group& group) {
    const auto masked = std::make_shared<MaskedNet>();
    fill(*masked, 0);
    auto model = DistributedDataParallel(
        masked, {.group = group, .broadcast_buffers = false});
    Report report(masked, {.group = group, .steps = 2});
    torch::optim::SGD optimizer(model.parameters(), 0.1);
    watched_step(model, optimizer, report, own_share(0, group));
    EXPECT_TRUE(report.consistent());
    if (group->rank() == 1) masked->mask[5] = 0;
    watched_step(model, optimizer, report, own_share(1, group));
    EXPECT_EQ(first_wrong(report), "buffers in 2: equal on ranks 0, 2");
    EXPECT_EQ(verdict_of(report).where,
              "mask[5] is 0 on rank 1 and 1 on ranks 0, 2; 1 element of the "
              "tensor differs, by at most 1");
    EXPECT_THAT(verdict_of(report).likely, HasSubstr("broadcast_buffers"));

    // Also from the start; a broadcast of buffers repairs it.
    Report late(masked, {.group = group, .steps = 1});
    EXPECT_EQ(first_wrong(late), "initial buffers in 0: equal on ranks 0, 2");
  });
}

TEST(ConsistencyReport, LetsRunningStatisticsDifferUnlessTheyAreSynchronized) {
  run_ranks(kBackend, 2, [](const Group& group) {
    auto plain = DistributedDataParallel(NetWithBatchNorm(), {.group = group});
    Report of_plain(plain.module(), {.group = group, .steps = 2});
    watched_steps(plain, of_plain, group);
    EXPECT_EQ(first_wrong(of_plain), "none");
    EXPECT_THAT(of_plain.take_text(),
                ContainsRegex("statistics of own samples +either +different"));

    const auto net = std::make_shared<SyncBatchNormImpl>(6, group);
    auto model = DistributedDataParallel(
        net, {.group = group, .broadcast_buffers = false});
    Report report(net, {.group = group, .steps = 2});
    Places places;
    int step = 0;
    places.after_step = [&] {
      if (++step == 2 && group->rank() == 1) net->running_var[3] += 1;
    };
    torch::optim::SGD optimizer(model.parameters(), 0.1);
    for (int i = 0; i < 2; ++i) {
      const at::Tensor input = own_share(i, group).input;
      watched_step(model, optimizer, report, {input, input.square()}, places);
    }
    EXPECT_EQ(first_wrong(report), "buffers in 2: different");
    EXPECT_THAT(verdict_of(report).where, HasSubstr("running_var[3] is"));
  });
}

TEST(ConsistencyReport, ShowsValuesOfChosenParameters) {
  run_ranks(kBackend, 2, [](const Group& group) {
    auto model = wrapped_net(group);
    Report report(model.module(), {.group = group,
                                   .steps = 1,
                                   .show = {"third.bias"},
                                   .show_elements = 2});
    report.take_text();
    // The gradient of a sum over four samples: ones on rank 0, twos on rank 1.
    torch::optim::SGD optimizer(model.parameters(), 0.5);
    const at::Tensor before = model->third->bias.detach().clone();
    report.data(wave({4, 6}, group->rank()));
    (model(wave({4, 6}, group->rank())).sum() * (group->rank() + 1)).backward();
    report.gradients();
    optimizer.step();
    {
      const torch::NoGradGuard no_grad;
      model->third->bias.fill_(0.25);
    }
    report.step_done();
    EXPECT_THAT(
        report.take_text(),
        HasSubstr("first values, step 1                 rank 0     rank 1\n"
                  "  third.bias                         0.25 0.25  0.25 0.25\n"
                  "  third.bias, gradient of each rank  4 4        8 8\n"
                  "  third.bias, gradient, reduced      6 6        6 6\n"));
  });
}

TEST(ConsistencyReport, TakesGradientsThatAnOptimizerAverages) {
  run_ranks(kBackend, 2, [](const Group& group) {
    auto model = NetUnderDdp(std::make_shared<Net>(),
                             {.group = group, .average_gradients = false});
    Report report(
        model.module(),
        {.group = group, .steps = 1, .reduced_gradients = Expected::kEither});
    Places places;
    places.at_step = [](torch::optim::Optimizer&) {};
    watched_steps(model, report, group, places);
    EXPECT_EQ(first_wrong(report), "none");
  });
}

TEST(ConsistencyReport, FindsGradientsThatAreEqualAndShouldNotBe) {
  run_ranks(kBackend, 2, [](const Group& group) {
    auto model = wrapped_net(group);
    Report report(model.module(), {.group = group,
                                   .steps = 1,
                                   .reduced_gradients = Expected::kDifferent});
    watched_steps(model, report, group);
    EXPECT_FALSE(report.consistent());
    EXPECT_THAT(verdict_of(report).where,
                HasSubstr("ranks 0, 1 have the same gradients"));
  });
}

TEST(ConsistencyReport, DoesNothingAfterItsSteps) {
  run_ranks(kBackend, 2, [](const Group& real) {
    const RecordingGroup recorded(real);
    auto model = wrapped_net(real);
    Report report(model.module(), {.group = recorded.group(), .steps = 1});
    torch::optim::SGD optimizer(model.parameters(), 0.1);
    watched_step(model, optimizer, report, own_share(0, real));
    EXPECT_THAT(recorded.take_events(), Not(IsEmpty()));
    const auto rows = report.rows().size();
    for (int step = 1; step < 4; ++step)
      watched_step(model, optimizer, report, own_share(step, real));
    EXPECT_THAT(recorded.take_events(), IsEmpty());
    EXPECT_EQ(report.rows().size(), rows);
  });
}

TEST(ConsistencyReport, ChangesNoBitOfTheTraining) {
  run_ranks(kBackend, 2, [](const Group& group) {
    auto watched = wrapped_net(group);
    Report report(watched.module(),
                  {.group = group, .steps = 3, .show = {"first.weight"}});
    watched_steps(watched, report, group);
    auto plain = wrapped_net(group);
    torch::optim::SGD optimizer(plain.parameters(), 0.1);
    train(
        plain, optimizer, [&](int step) { return own_share(step, group); }, 3);
    EXPECT_EQ(largest_difference(plain.parameters(), watched.parameters()), 0);
  });
}

TEST(ConsistencyReport, RefusesWhatCannotWork) {
  run_ranks(kBackend, 1, [](const Group& group) {
    const auto net = std::make_shared<Net>();
    EXPECT_THAT(message_of([&] {
                  Report(net, {.group = group, .show = {"frist.weight"}});
                }),
                AllOf(HasSubstr("unknown parameter \"frist.weight\""),
                      HasSubstr("did you mean \"first.weight\"?")));
    EXPECT_THAT(message_of([&] { Report(net, {.group = group, .steps = 0}); }),
                HasSubstr("must be at least 1"));
    EXPECT_THAT(message_of([&] {
                  Report(net, {.group = group,
                               .initial_weights = Expected::kDifferent});
                }),
                HasSubstr("must be kEqual or kEither"));
  });
}

}  // namespace
}  // namespace lockstep
