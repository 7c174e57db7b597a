// Tests of passes that fail on one rank or on all: each rank gets its error,
// and no rank waits. The groups' timeout is half an hour: since these tests end
// sooner, it is not the timeout that ends the waits.
#include "src/torch/gradient/pass_errors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <torch/csrc/autograd/custom_function.h>
#include <unistd.h>

#include <cmath>

#include "lockstep/base/error.h"
#include "lockstep/torch/distributed_data_parallel.h"
#include "src/comm/testing/run_ranks.h"
#include "src/torch/testing/small_nets.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;

TEST(PassErrors, RefuseToReduceAGraphOfGradients) {
  run_ranks(kBackend, 2, [](const Group& group) {
    auto model = DistributedDataParallel(Net(), {.group = group});
    const Share share = share_of_batch(0, group->rank(), 2, 2);
    const auto pass = [&] {
      loss_of(model(share.input), share.target)
          .backward({}, /*retain_graph=*/true, /*create_graph=*/true);
    };
    EXPECT_THROW(pass(), InvalidArgument);
    EXPECT_THAT(message_of(pass), HasSubstr("create_graph = true"));
    model.zero_grad();
    backward(model, *group);
    EXPECT_LE(
        largest_difference(gradients_of(*model), gradients_of_one_process(2)),
        kTolerance);
  });
}

// The loss of a gradient penalty, as the message advises.
template <class Model>
at::Tensor penalised_loss(Model& model, const Share& share) {
  const at::Tensor input = share.input.detach().clone().requires_grad_();
  const at::Tensor loss = loss_of(model.forward(input), share.target);
  const at::Tensor inner = torch::autograd::grad(
      {loss}, {input}, {}, /*retain_graph=*/true, /*create_graph=*/true)[0];
  // A rank's share of the mean over the batch has its own norm.
  return loss + inner.square().sum() * 4;
}

TEST(PassErrors, SayOfDoubleBackwardWhatWorks) {
  std::vector<at::Tensor> expected;
  for (const int rank : {0, 1}) {
    Net net;
    penalised_loss(net, share_of_batch(0, rank, 2, 2)).backward();
    for (std::size_t i = 0; i < net.parameters().size(); ++i) {
      const at::Tensor half = net.parameters()[i].grad() / 2;
      if (rank == 0)
        expected.push_back(half);
      else
        expected[i] += half;
    }
  }
  run_ranks(kBackend, 2, [&](const Group& group) {
    auto model = DistributedDataParallel(Net(), small_buckets(group));
    for (int step = 0; step < 2; ++step) {
      model.zero_grad();
      penalised_loss(model, share_of_batch(0, group->rank(), 2, 2)).backward();
      EXPECT_LE(largest_difference(gradients_of(*model), expected), 1e-5);
    }
  });
}

TEST(PassErrors, NameTheRankThatLeftBeforeAnothersExtraStep) {
  run_ranks(kBackend, 3, [](const Group& group) {
    auto model = DistributedDataParallel(Net(), small_buckets(group));
    backward(model, *group);
    if (group->rank() != 1) return;
    const auto extra = [&] { backward(model, *group, 1); };
    EXPECT_THAT(message_of(extra), AllOf(HasSubstr("all_reduce"),
                                         HasSubstr("gradients, bucket 1 of")));
  });
}

// For gradients in the group's own order. With a separate order both ranks
// would wait, each in another one, until the watchdog and the timeout report
// it.
TEST(PassErrors, NameTheRanksWhoseCallsDoNotFitAnExtraStep) {
  run_ranks("reference", 2, [](const Group& group) {
    auto model = DistributedDataParallel(Net(), small_buckets(group));
    backward(model, *group);
    const std::string message = message_of([&] {
      if (group->rank() == 1) backward(model, *group, 1);
      group->barrier().wait();
    });
    EXPECT_THAT(message, AllOf(ContainsRegex("all_reduce #.* by rank 1"),
                               ContainsRegex("barrier #.* by rank 0"),
                               HasSubstr("one runs a step more")));
  });
}

TEST(PassErrors, ReachRanksThatAreInTheirForwardPass) {
  run_ranks(kBackend, 2, [](const Group& group) {
    auto model =
        DistributedDataParallel(NetWithBatchNorm(), small_buckets(group));
    backward(model, *group);
    if (group->rank() == 1)
      model->layer->weight.register_hook([](const at::Tensor& gradient) {
        throw std::runtime_error("a hook of the user's");
        return gradient;
      });
    const std::string message = message_of([&] {
      for (int step = 1; step < 3; ++step) backward(model, *group, step);
    });
    EXPECT_THAT(message, HasSubstr(group->rank() == 1
                                       ? "a hook of the user's"
                                       : "rank 1 left its backward pass"));
  });
}

// The identity, whose backward throws.
struct ThrowsInBackward : torch::autograd::Function<ThrowsInBackward> {
  static at::Tensor forward(torch::autograd::AutogradContext* /*context*/,
                            const at::Tensor& input) {
    return input * 1;
  }
  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* /*context*/,
      const torch::autograd::variable_list& /*gradients*/) {
    throw std::runtime_error("the last layer's own");
  }
};
struct NetThatThrowsFirst : Net {
  at::Tensor forward(const at::Tensor& input) {
    const at::Tensor output = Net::forward(input);
    return throws ? ThrowsInBackward::apply(output) : output;
  }
  bool throws = false;
};

// Issue 43: the rank catches it, and goes on.
TEST(PassErrors, ReachTheOthersBeforeTheFirstGradientToo) {
  run_ranks(kBackend, 2, [](const Group& group) {
    auto model =
        DistributedDataParallel(NetThatThrowsFirst(), small_buckets(group));
    backward(model, *group);
    model->throws = group->rank() == 1;
    EXPECT_THAT(
        message_of([&] { backward(model, *group, 1); }),
        HasSubstr(group->rank() == 1 ? "the last layer's own"
                                     : "rank 1 left its backward pass"));
  });
}

// Its output leaves every parameter unused, as that of a module which returns
// its input beside the result: a backward pass through it is no pass of the
// module's.
struct NetThatPassesItsInput : Net {
  at::Tensor forward(const at::Tensor& input) {
    return passes ? input.narrow(1, 0, 3) * 1 : Net::forward(input);
  }
  bool passes = false;
};

TEST(PassErrors, AreNoneForABackwardPassThatComesToNoParameter) {
  run_ranks(kBackend, 2, [](const Group& group) {
    auto model =
        DistributedDataParallel(NetThatPassesItsInput(), small_buckets(group));
    if (group->rank() == 1) {
      model->passes = true;
      const auto input = torch::ones({2, 6}).requires_grad_();
      model(input).sum().backward();
      EXPECT_TRUE(all_are(input.grad().narrow(1, 0, 3), 1));
      model->passes = false;
    }
    backward(model, *group);
    EXPECT_LE(
        largest_difference(gradients_of(*model), gradients_of_one_process(2)),
        kTolerance);
  });
}

TEST(PassErrors, OfARefusedGraphLeaveTheOtherModelUsableToo) {
  run_ranks(kBackend, 2, [](const Group& group) {
    auto one = DistributedDataParallel(Net(), small_buckets(group));
    auto other = DistributedDataParallel(Net(), small_buckets(group));
    const Share share = share_of_batch(0, group->rank(), 2, 2);
    EXPECT_THROW((loss_of(one(share.input), share.target) +
                  loss_of(other(share.input), share.target))
                     .backward({}, /*retain_graph=*/true,
                               /*create_graph=*/true),
                 InvalidArgument);
    for (auto* model : {&one, &other}) {
      model->zero_grad();
      backward(*model, *group);
      EXPECT_LE(largest_difference(gradients_of(**model),
                                   gradients_of_one_process(2)),
                kTolerance);
    }
  });
}

TEST(PassErrors, OfAnInnerDerivativeLeaveTheGroupUsable) {
  run_ranks(kBackend, 2, [](const Group& group) {
    auto model =
        DistributedDataParallel(NetThatThrowsFirst(), small_buckets(group));
    const Share share = share_of_batch(0, group->rank(), 2, 2);
    if (group->rank() == 1) {
      model->throws = true;
      const auto input = share.input.detach().clone().requires_grad_();
      EXPECT_THROW(torch::autograd::grad({model(input).sum()}, {input}),
                   std::runtime_error);
      model->throws = false;
    }
    backward(model, *group);
    EXPECT_LE(
        largest_difference(gradients_of(*model), gradients_of_one_process(2)),
        kTolerance);
  });
}

TEST(PassErrors, AreNoneForANotANumberWhichReachesEveryRank) {
  run_ranks(kBackend, 3, [](const Group& group) {
    auto model = DistributedDataParallel(Net(), small_buckets(group));
    Share share = share_of_batch(0, group->rank(), 3, 3);
    const at::Tensor input = share.input.clone();
    if (group->rank() == 1) input[0][0] = std::nan("");
    loss_of(model(input), share.target).backward();
    for (const at::Tensor& gradient : gradients_of(*model))
      EXPECT_TRUE(gradient.isnan().any().item<bool>());
  });
}

TEST(PassErrors, AreNoneWhenAProgramForksInTheMiddle) {
  run_ranks(kBackend, 2, [](const Group& group) {
    auto model = DistributedDataParallel(Net(), small_buckets(group));
    bool forked = false;
    model->first->weight.register_hook([&](const at::Tensor& gradient) {
      if (group->rank() == 1 && !std::exchange(forked, true)) {
        const pid_t child = ::fork();
        if (child == 0) {
          // A child's changes to its gradients do not reach the parent.
          for (const at::Tensor& mine : gradients_of(*model))
            if (mine.defined())
              std::fill_n(mine.template data_ptr<float>(), mine.numel(), 1e9F);
          ::_exit(0);
        }
        int status = -1;
        ::waitpid(child, &status, 0);
        EXPECT_EQ(status, 0);
      }
      return gradient;
    });
    for (int step = 0; step < 2; ++step) {
      model.zero_grad();
      backward(model, *group, step);
      EXPECT_LE(largest_difference(gradients_of(*model),
                                   gradients_of_one_process(2, step)),
                kTolerance);
    }
    EXPECT_EQ(forked, group->rank() == 1);
  });
}

}  // namespace
}  // namespace lockstep
