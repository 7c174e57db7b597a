// Tests of the comparison of replicas that every wrapper makes by itself: that
// it finds replicas which drift apart in ways that no other check knows, and
// that it says nothing, and costs nothing, otherwise.
#include "src/torch/compare/replica_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <list>
#include <memory>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/torch/comm_hooks.h"
#include "lockstep/torch/horovod.h"
#include "lockstep/torch/zero_redundancy_optimizer.h"
#include "src/comm/testing/run_ranks.h"
#include "src/torch/testing/recording_group.h"
#include "src/torch/testing/small_nets.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

torch::optim::SGD sgd(const std::vector<at::Tensor>& parameters) {
  return torch::optim::SGD(parameters, 0.1);
}

// What rank 1's program does alone, after the backward pass of each step.
void clip_by_value(const std::vector<at::Tensor>& parameters) {
  for (const at::Tensor& parameter : parameters)
    parameter.mutable_grad().clamp_(-1e-3, 1e-3);
}

// Trains `steps` steps; `fault` runs on rank 1 after each backward pass.
// Returns what a step threw, with its number.
template <class Model, class Optimizer, class Fault>
std::string train_with(Model& model, Optimizer& optimizer, const Group& group,
                       int steps, const Fault& fault) {
  for (int step = 1; step <= steps; ++step) {
    try {
      optimizer.zero_grad();
      backward(model, *group, step);
      if (group->rank() == 1) fault();
      optimizer.step();
    } catch (const Mismatch& error) {
      return "step " + std::to_string(step) + ": " + error.what();
    }
  }
  return "no error";
}

// A group whose operations of one kind run on copies from some moment on, so
// that the caller's tensors stay as they are. A wrapper that has lost sight of
// a tensor has the same effect: a buffer that no broadcast reaches, a gradient
// that no reduction reaches. The checks that find such a tensor cannot be
// switched off, but they do not see this fault.
class LosingBackend : public RecordingBackend {
 public:
  LosingBackend(const Group& group, OperationKind kind)
      : RecordingBackend(group), kind_(kind) {}

  void lose_results() { loses_ = true; }

  Work start(const Operation& operation) override {
    if (!loses_ || operation.kind != kind_)
      return RecordingBackend::start(operation);
    auto& copies = copies_.emplace_back();
    std::vector<Buffer> buffers(operation.outputs.begin(),
                                operation.outputs.end());
    for (Buffer& buffer : buffers) {
      auto& copy = copies.emplace_back(buffer.bytes());
      std::memcpy(copy.data(), buffer.data, copy.size());
      buffer.data = copy.data();
    }
    Operation elsewhere = operation;
    elsewhere.outputs = buffers;
    return RecordingBackend::start(elsewhere);
  }

 private:
  OperationKind kind_;
  bool loses_ = false;
  std::list<std::vector<std::vector<std::byte>>> copies_;
};

// What a rank of a wrapped NetWithBatchNorm throws once results of `kind` are
// lost, from the second pass of 9 on.
std::string error_when_lost(const Group& group, OperationKind kind) {
  const auto backend = std::make_shared<LosingBackend>(group, kind);
  const RecordingGroup losing(group, backend);
  auto model = DistributedDataParallel(
      NetWithBatchNorm(),
      {.group = losing.group(), .compare_replicas_every = 3});
  auto optimizer = sgd(model.parameters());
  EXPECT_EQ(train_with(model, optimizer, group, 1, [] {}), "no error");
  backend->lose_results();
  return train_with(model, optimizer, group, 8, [] {});
}

TEST(ReplicaWatch, FindsBuffersThatNoBroadcastReaches) {
  run_ranks(kBackend, 2, [](const Group& group) {
    EXPECT_THAT(error_when_lost(group, OperationKind::kBroadcast),
                AllOf(HasSubstr("step 2: "), HasSubstr("differ in pass 3"),
                      HasSubstr("buffer norm.running_mean[0] is"),
                      HasSubstr("registers or replaces buffers")));
  });
}

TEST(ReplicaWatch, FindsWeightsWhoseGradientsNoReductionReaches) {
  run_ranks(kBackend, 2, [](const Group& group) {
    EXPECT_THAT(error_when_lost(group, OperationKind::kAllReduce),
                AllOf(HasSubstr("step 2: "), HasSubstr("differ in pass 3"),
                      HasSubstr("layer.weight[0, 0] is")));
  });
}

TEST(ReplicaWatch, ThrowsOnEveryRankInTheFirstComparedPassAfterADivergence) {
  run_ranks(kBackend, 3, [](const Group& group) {
    auto model = DistributedDataParallel(
        Net(), {.group = group, .compare_replicas_every = 4});
    auto optimizer = sgd(model.parameters());
    const auto none = [] {};
    EXPECT_EQ(train_with(model, optimizer, group, 5, none), "no error");
    const std::string message = train_with(model, optimizer, group, 20, [&] {
      clip_by_value(model.parameters());
    });
    EXPECT_THAT(message,
                AllOf(HasSubstr("step 3: "), HasSubstr("differ in pass 8"),
                      HasSubstr("where:   first.weight[0, 0] is"),
                      HasSubstr("differ:  rank 1 from most"),
                      HasSubstr("since:   after pass 3"), HasSubstr("clipping"),
                      HasSubstr("next:    resume from an older checkpoint")));
    // The group stays usable, and the pass has reduced its gradients.
    group->barrier().wait();
  });
}

TEST(ReplicaWatch, SaysNothingOfReplicasThatStayEqual) {
  for (const char* backend : {kBackend, "gloo", "reference"})
    run_ranks(backend, 2, [](const Group& group) {
      auto model = DistributedDataParallel(
          NetWithBatchNorm(), {.group = group, .compare_replicas_every = 1});
      auto optimizer = sgd(model.parameters());
      EXPECT_EQ(train_with(model, optimizer, group, 10, [] {}), "no error");
    });
}

// The copies of buffers for a comparison that does not come are dropped.
TEST(ReplicaWatch, SaysNothingOfBuffersThatNoPassComparesWithinJoin) {
  run_ranks(kBackend, 2, [](const Group& group) {
    auto model = DistributedDataParallel(
        NetWithBatchNorm(), {.group = group, .compare_replicas_every = 1});
    {
      const auto scope = model.join();
      for (int step = 0; step <= 2 * group->rank(); ++step)
        backward(model, *group, step);
    }
    model.eval();
    EXPECT_EQ(message_of([&] { backward(model, *group); }), "no error");
  });
}

TEST(ReplicaWatch, ComparesEveryThousandthPassByDefault) {
  run_ranks(kBackend, 2, [](const Group& real) {
    const RecordingGroup recorded(real);
    auto model = DistributedDataParallel(torch::nn::Linear(1, 1),
                                         {.group = recorded.group()});
    const auto comparisons = [&](int passes) {
      for (int pass = 0; pass < passes; ++pass)
        model(torch::ones({1, 1})).sum().backward();
      return std::ranges::count(recorded.take_events(), "all_gather");
    };
    comparisons(2);  // in which the plan of the buckets is made
    EXPECT_EQ(comparisons(997), 0);
    EXPECT_EQ(comparisons(1), 1);
    EXPECT_EQ(comparisons(10), 0);
  });
}

// What each kind of optimizer leaves unnoticed.
TEST(ReplicaWatch, IsPartOfHorovodsOptimizer) {
  for (const horovod::StepOp& op : {horovod::StepOp(ReduceOp::kAverage),
                                    horovod::StepOp(horovod::Adasum{})})
    run_ranks(kBackend, 2, [&](const Group& group) {
      Net net;
      horovod::DistributedOptimizer optimizer(
          sgd(net.parameters()), net.named_parameters(),
          {.group = group, .op = op, .compare_replicas_every = 3});
      EXPECT_THAT(train_with(net, optimizer, group, 9,
                             [&] {
                               const torch::NoGradGuard no_grad;
                               net.second->bias[2] += 1;
                             }),
                  AllOf(HasSubstr("step 3: "), HasSubstr("second.bias[2] is")));
    });
}

// Rank 1 has no backward pass in one step, and hashes its weights in step().
// The others have hashed theirs before the program has changed them.
TEST(ReplicaWatch, SaysNothingIfRanksHashAtDifferentMomentsOfAStep) {
  run_ranks(kBackend, 3, [&](const Group& group) {
    Net net;
    horovod::DistributedOptimizer optimizer(
        sgd(net.parameters()), net.named_parameters(),
        {.group = group, .compare_replicas_every = 1});
    for (int step = 0; step < 4; ++step) {
      optimizer.zero_grad();
      if (step != 2 || group->rank() != 1) backward(net, *group, step);
      {
        const torch::NoGradGuard no_grad;
        for (at::Tensor& parameter : net.parameters()) parameter.mul_(0.9);
      }
      EXPECT_EQ(message_of([&] { optimizer.step(); }), "no error");
    }
  });
}

// Every step exchanges the parameters that have a gradient.
TEST(ReplicaWatch, IsPartOfTheShardedOptimizer) {
  run_ranks(kBackend, 2, [](const Group& group) {
    Net net;
    net.second->bias.requires_grad_(false);
    auto model = DistributedDataParallel(
        std::move(net), {.group = group, .average_gradients = false});
    ZeroRedundancyOptimizer optimizer(model.parameters(),
                                      torch::optim::SGDOptions(0.1),
                                      {.group = group,
                                       .averages_gradients = true,
                                       .compare_replicas_every = 2});
    EXPECT_THAT(
        train_with(model, optimizer, group, 9,
                   [&] { model->second->bias.add_(1); }),
        AllOf(HasSubstr("step 2: "), HasSubstr("parameter 3 of group 0[0] is"),
              HasSubstr("on rank 1")));
  });
}

TEST(ReplicaWatch, IsLeftOutWhereReplicasMayDiffer) {
  run_ranks(kBackend, 2, [](const Group& group) {
    auto local = DistributedDataParallel(
        Net(), {.group = group, .compare_replicas_every = 1});
    local.register_comm_hook(
        std::make_shared<PostLocalSgdHook>(PostLocalSgdOptions{
            .start_iteration = 2, .post_local_gradient_allreduce = false}));
    auto optimizer = sgd(local.parameters());
    EXPECT_EQ(train_with(local, optimizer, group, 6, [] {}), "no error");

    auto switched_off = DistributedDataParallel(
        Net(), {.group = group, .compare_replicas_every = 0});
    auto other = sgd(switched_off.parameters());
    EXPECT_EQ(train_with(switched_off, other, group, 6,
                         [&] { clip_by_value(switched_off.parameters()); }),
              "no error");
  });
}

TEST(ReplicaWatch, IsLeftOutWithinJoinAndNoSync) {
  run_ranks(kBackend, 2, [](const Group& group) {
    auto model = DistributedDataParallel(
        NetWithBatchNorm(), {.group = group, .compare_replicas_every = 1});
    auto optimizer = sgd(model.parameters());
    {
      const auto scope = model.join();
      const int steps = 1 + 2 * group->rank();
      EXPECT_EQ(train_with(model, optimizer, group, steps, [] {}), "no error");
    }
    {
      const auto scope = model.no_sync();
      for (int pass = 0; pass <= group->rank(); ++pass) backward(model, *group);
    }
    EXPECT_EQ(train_with(model, optimizer, group, 3, [] {}), "no error");
  });
}

TEST(ReplicaWatch, ComparesBuffersAsTheyWereAfterTheirBroadcast) {
  run_ranks(kBackend, 2, [](const Group& group) {
    ReplicaWatch watch(2, group, [] { return NamedTensorList(); });
    const at::Tensor mean = torch::zeros({2});
    const auto pass = [&] {
      if (watch.is_due()) watch.buffers_are_equal({{"mean", mean}});
      mean.add_(group->rank());  // as forward() does
      watch.compare(*group);
    };
    pass();
    mean.zero_();
    pass();  // equal when it was compared, and different now
    pass();
    EXPECT_THAT(
        message_of(pass),
        AllOf(HasSubstr("buffer mean[0] is 2 on rank 1"),
              HasSubstr("differ in pass 4"), HasSubstr("since:   after pass 1"),
              HasSubstr("registers or replaces buffers")));
  });
}

TEST(ReplicaWatch, NamesAParameterThatOneRankAloneHas) {
  run_ranks(kBackend, 3, [](const Group& group) {
    ReplicaWatch watch(1, group, [&] {
      NamedTensorList list{{"weight", torch::ones({2})}};
      if (group->rank() == 2) list.emplace_back("scale", torch::ones({1}));
      return list;
    });
    EXPECT_THAT(message_of([&] { watch.compare(*group); }),
                AllOf(HasSubstr("scale"), HasSubstr("rank 2")));
  });
}

TEST(ReplicaWatch, RefusesPeriodsThatDifferOnEveryRank) {
  run_ranks(kBackend, 2, [](const Group& group) {
    EXPECT_THAT(message_of([&] {
                  DistributedDataParallel(
                      Net(), {.group = group,
                              .compare_replicas_every = group->rank() + 1});
                }),
                AllOf(HasSubstr("compare_replicas_every 2"),
                      HasSubstr("to the same number on every rank")));
    group->barrier().wait();
  });
}

TEST(ReplicaWatch, RefusesANegativePeriod) {
  run_ranks(kBackend, 1, [](const Group& group) {
    EXPECT_THAT(message_of([&] {
                  DistributedDataParallel(
                      Net(), {.group = group, .compare_replicas_every = -1});
                }),
                HasSubstr("compare_replicas_every to 1 or more"));
  });
}

}  // namespace
}  // namespace lockstep
