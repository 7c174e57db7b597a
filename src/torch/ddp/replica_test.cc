// Tests of a wrapper's construction and of its buffers.
#include "src/torch/ddp/replica.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/torch/distributed_data_parallel.h"
#include "lockstep/torch/tensor_collectives.h"
#include "src/comm/testing/run_ranks.h"
#include "src/torch/testing/small_nets.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

TEST(Replica, StartsFromRankZerosParametersAndBuffers) {
  run_ranks(kBackend, 3, [](const Group& group) {
    NetWithBatchNorm net;
    fill(net, group->rank());
    net.norm->running_mean.fill_(group->rank() + 1);
    net.norm->num_batches_tracked.fill_(group->rank() + 10);
    NetWithBatchNorm first;
    fill(first, 0);
    auto model = DistributedDataParallel(std::move(net), {.group = group});
    EXPECT_EQ(largest_difference(model.parameters(), first.parameters()), 0);
    EXPECT_TRUE((model->norm->running_mean == 1).all().item<bool>());
    EXPECT_EQ(model->norm->num_batches_tracked.item<int>(), 10);
  });
}

TEST(Replica, StartsFromRankZerosParametersWhateverTheirStrides) {
  run_ranks(kBackend, 2, [](const Group& group) {
    torch::nn::Linear layer(3, 5);
    layer->weight.set_data(wave({3, 5}, group->rank()).t());
    auto model = DistributedDataParallel(layer, {.group = group});
    EXPECT_TRUE(layer->weight.equal(wave({3, 5}, 0).t()));
  });
}

TEST(Replica, LetsAutogradKnowThatParametersHaveChanged) {
  run_ranks(kBackend, 2, [](const Group& group) {
    torch::nn::Linear layer(3, 5);
    const at::Tensor output = layer(wave({2, 3}, 0).requires_grad_());
    auto model = DistributedDataParallel(layer, {.group = group});
    EXPECT_THAT(message_of([&] { output.sum().backward(); }),
                HasSubstr("modified by an inplace operation"));
  });
}

TEST(Replica, TakesRankZerosBuffersBeforeForward) {
  run_ranks(kBackend, 2, [](const Group& group) {
    auto model = DistributedDataParallel(NetWithBatchNorm(), {.group = group});
    backward(model, *group);  // shares differ, and so do statistics now
    std::vector<float> means(6);
    group->all_gather(view(model->norm->running_mean), view(means)).wait();
    EXPECT_NE(means[0], means[3]);
    backward(model, *group);

    NetWithBatchNorm alone;
    alone.forward(share_of_batch(0, 0, 2, 2).input);
    alone.forward(share_of_batch(0, group->rank(), 2, 2).input);
    EXPECT_LE(largest_difference(model.buffers(), alone.buffers()), kTolerance);
  });
}

// Has no buffers until its first forward pass.
struct NetWithLateBuffer : torch::nn::Module {
  NetWithLateBuffer() {
    layer = register_module("layer", torch::nn::Linear(6, 3));
    fill(*this, 0);
  }
  at::Tensor forward(const at::Tensor& input) {
    if (!mean.defined()) mean = register_buffer("mean", torch::zeros({6}));
    seen = mean.clone();
    mean.add_(input.detach().mean(0));
    return layer(input);
  }
  torch::nn::Linear layer{nullptr};
  at::Tensor mean, seen;
};

// Issue 43: pytorch #63916, #64472.
TEST(Replica, TakesRankZerosBuffersThatForwardRegisters) {
  run_ranks(kBackend, 2, [](const Group& group) {
    auto model = DistributedDataParallel(NetWithLateBuffer(), {.group = group});
    const auto mean_of = [](int rank, int step) {
      return share_of_batch(step, rank, 2, 2).input.mean(0);
    };
    backward(model, *group, 0);
    backward(model, *group, 1);
    EXPECT_TRUE(torch::allclose(model->seen, mean_of(0, 0)));
    model.broadcast_buffers();
    EXPECT_TRUE(torch::allclose(model->mean, mean_of(0, 0) + mean_of(0, 1)));
  });
}

TEST(Replica, TakesBuffersThatForwardRegistersWithinJoin) {
  run_ranks(kBackend, 2, [](const Group& group) {
    auto model = DistributedDataParallel(NetWithLateBuffer(), {.group = group});
    {
      const auto scope = model.join();
      for (int step = 0; step <= 2 * group->rank(); ++step)
        backward(model, *group, step);
    }
    std::vector<float> means(12);
    group->all_gather(view(model->mean), view(means)).wait();
    EXPECT_EQ(std::vector(means.begin(), means.begin() + 6),
              std::vector(means.begin() + 6, means.end()));
  });
}

TEST(Replica, TakesRankZerosBuffersOfALayerThatWasReplaced) {
  run_ranks(kBackend, 2, [](const Group& group) {
    torch::nn::Sequential net(torch::nn::Linear(6, 3));
    const auto norm = [] {
      return torch::nn::BatchNorm1d(
          torch::nn::BatchNormOptions(3).affine(false));
    };
    net->push_back("norm", norm());
    auto model = DistributedDataParallel(net, {.group = group});
    backward(model, *group, 0);
    const auto later = net->replace_module("norm", norm());
    later->running_mean.fill_(group->rank() + 7);
    model.broadcast_buffers();
    EXPECT_TRUE(all_are(later->running_mean, 7));
  });
}

TEST(Replica, RefusesABufferThatOneRankAloneRegisters) {
  run_ranks(kBackend, 2, [](const Group& group) {
    auto model = DistributedDataParallel(NetWithBatchNorm(), {.group = group});
    if (group->rank() == 1) model->register_buffer("own", torch::zeros({1}));
    EXPECT_THROW(model.broadcast_buffers(), Mismatch);
  });
}

TEST(Replica, LeavesBuffersAloneWhenAskedTo) {
  run_ranks(kBackend, 2, [](const Group& group) {
    auto model = DistributedDataParallel(
        NetWithBatchNorm(), {.group = group, .broadcast_buffers = false});
    backward(model, *group);
    backward(model, *group);
    NetWithBatchNorm alone;
    alone.forward(share_of_batch(0, group->rank(), 2, 2).input);
    alone.forward(share_of_batch(0, group->rank(), 2, 2).input);
    EXPECT_LE(largest_difference(model.buffers(), alone.buffers()), kTolerance);
  });
}

TEST(Replica, TakesRankZerosBuffersWhenAskedTo) {
  run_ranks(kBackend, 2, [](const Group& group) {
    for (const bool always : {true, false}) {
      auto model = DistributedDataParallel(
          NetWithBatchNorm(), {.group = group, .broadcast_buffers = always});
      backward(model, *group);
      model.eval();
      model.broadcast_buffers();
      NetWithBatchNorm alone;
      alone.forward(share_of_batch(0, 0, 2, 2).input);
      EXPECT_LE(largest_difference(model.buffers(), alone.buffers()),
                kTolerance);
      const at::Tensor input = wave({4, 6}, 0);
      alone.eval();
      EXPECT_LE(largest_difference({model(input)}, {alone.forward(input)}),
                kTolerance);
    }
  });
}

TEST(Replica, WaitsForNobodyInEvaluationOnOneRank) {
  run_ranks(kBackend, 2, [](const Group& group) {
    auto model = DistributedDataParallel(NetWithBatchNorm(), {.group = group});
    if (group->rank() == 0) {
      model.eval();
      model(wave({4, 6}, 0));
      model.train();
      const torch::NoGradGuard no_grad;
      model(wave({4, 6}, 0));
    }
    group->barrier().wait();  // the ranks still match
    backward(model, *group);
  });
}

TEST(Replica, RefusesDifferentModelsOnEveryRank) {
  run_ranks(kBackend, 3, [](const Group& group) {
    const int outputs = group->rank() == 1 ? 4 : 3;
    const auto wrap = [&] {
      DistributedDataParallel(torch::nn::Linear(6, outputs), {.group = group});
    };
    EXPECT_THROW(wrap(), Mismatch);
    const std::string message = message_of(wrap);
    EXPECT_THAT(message, HasSubstr("rank 0:  parameter weight Float [3, 6]"));
    EXPECT_THAT(message, HasSubstr("rank 1:  parameter weight Float [4, 6]"));
    EXPECT_NO_THROW(group->barrier().wait());
  });
}

TEST(Replica, RefusesAModelWithMoreParametersThanRankZeros) {
  run_ranks(kBackend, 2, [](const Group& group) {
    const auto options =
        torch::nn::LinearOptions(6, 3).bias(group->rank() == 1);
    const std::string message = message_of([&] {
      DistributedDataParallel(torch::nn::Linear(options), {.group = group});
    });
    EXPECT_THAT(message, HasSubstr("rank 0:  no such line"));
    EXPECT_THAT(message, HasSubstr("rank 1:  parameter bias Float [3]"));
  });
}

TEST(Replica, RefusesModelsThatAreFrozenDifferently) {
  run_ranks(kBackend, 2, [](const Group& group) {
    torch::nn::Linear layer(6, 3);
    if (group->rank() == 1) layer->bias.requires_grad_(false);
    const std::string message =
        message_of([&] { DistributedDataParallel(layer, {.group = group}); });
    EXPECT_THAT(message, HasSubstr("rank 1:  parameter bias Float [3] frozen"));
  });
}

TEST(Replica, RefusesAModelWithNothingToTrain) {
  for (const int ranks : {1, 2})
    run_ranks(kBackend, ranks, [](const Group& group) {
      torch::nn::Linear layer(6, 3);
      for (at::Tensor& parameter : layer->parameters())
        parameter.requires_grad_(false);
      const auto wrap = [&] {
        DistributedDataParallel(layer, {.group = group});
      };
      EXPECT_THROW(wrap(), InvalidArgument);
      EXPECT_THAT(message_of(wrap), HasSubstr("no parameter requires"));
    });
}

TEST(Replica, RefusesAnEmptyPointerOrHolder) {
  run_ranks(kBackend, 1, [](const Group& group) {
    EXPECT_THROW(
        DistributedDataParallel(std::shared_ptr<Net>(), {.group = group}),
        InvalidArgument);
    EXPECT_THROW(
        DistributedDataParallel(torch::nn::Linear(nullptr), {.group = group}),
        InvalidArgument);
  });
}

TEST(Replica, RefusesATypeThatCannotBeAveraged) {
  struct Complex : torch::nn::Module {
    Complex() {
      register_parameter("phase", torch::zeros({2}, at::kComplexFloat));
    }
  };
  run_ranks(kBackend, 2, [](const Group& group) {
    EXPECT_THAT(message_of([&] {
                  DistributedDataParallel(Complex(), {.group = group});
                }),
                HasSubstr("parameter phase cannot be reduced"));
  });
}

// Types that collectives cannot reduce.
TEST(Replica, TakesRankZerosBuffersOfAnyType) {
  struct Rope : torch::nn::Module {
    explicit Rope(int rank) {
      register_parameter("w", torch::ones({4}));
      for (const at::ScalarType type :
           {at::kComplexFloat, at::kShort, at::kFloat8_e4m3fn, at::kUInt16,
            at::kBool}) {
        const std::string name = c10::toString(type);
        register_buffer(name, torch::full({2, 3}, rank, at::kFloat).to(type));
        register_buffer(name + "_scalar",
                        torch::full({}, rank, at::kFloat).to(type));
        register_buffer(name + "_transposed",
                        torch::full({2, 3}, rank, at::kFloat).to(type).t());
      }
      register_buffer("conjugate",
                      torch::full({2}, c10::complex<float>(0, rank)).conj());
    }
    at::Tensor forward() { return parameters()[0].sum(); }
  };
  run_ranks(kBackend, 2, [](const Group& group) {
    for (const bool always : {true, false}) {
      auto model = DistributedDataParallel(
          Rope(1 + group->rank()),
          {.group = group, .broadcast_buffers = always});
      const auto expect_ones = [&] {
        for (const auto& item : model->named_buffers())
          EXPECT_TRUE((item.key() == "conjugate"
                           ? at::imag(item.value().resolve_conj()) == -1
                           : item.value().to(at::kComplexFloat) == 1)
                          .all()
                          .item<bool>())
              << item.key();
      };
      expect_ones();
      model.forward().backward();
      expect_ones();
    }
  });
}

TEST(Replica, RefusesSparseTensorsByName) {
  struct Sparse : torch::nn::Module {
    explicit Sparse(bool buffer) {
      register_parameter("w", torch::ones({4}));
      if (buffer)
        register_buffer("mask", torch::ones({4}).to_sparse());
      else
        register_parameter("embedding", torch::ones({4}).to_sparse());
    }
  };
  run_ranks(kBackend, 2, [](const Group& group) {
    const auto refusal = [&](bool buffer) {
      return message_of(
          [&] { DistributedDataParallel(Sparse(buffer), {.group = group}); });
    };
    EXPECT_THAT(refusal(true), HasSubstr("buffer mask cannot be copied to all "
                                         "ranks: it is sparse"));
    EXPECT_THAT(refusal(false), HasSubstr("parameter embedding cannot be"));
  });
}

struct WithBuffer : torch::nn::Module {
  explicit WithBuffer(const at::Tensor& values) {
    register_parameter("w", torch::ones({4}));
    buffer = register_buffer("whitening", values);
  }
  at::Tensor buffer;
};

TEST(Replica, CopiesAnExpandedBuffer) {
  run_ranks(kBackend, 2, [](const Group& group) {
    const auto own = static_cast<float>(group->rank() + 1);
    auto model = DistributedDataParallel(
        WithBuffer(torch::full({2, 1, 2}, own).expand({2, 3, 2})),
        {.group = group});
    EXPECT_TRUE(model->buffer.equal(torch::ones({2, 3, 2})));
    EXPECT_EQ(model->buffer.stride(1), 0);
  });
}

TEST(Replica, RefusesABufferThatIsExpandedOnOneRankAlone) {
  run_ranks(kBackend, 2, [](const Group& group) {
    const at::Tensor expanded = torch::ones({2}).expand({3, 2});
    const bool first = group->rank() == 0;
    EXPECT_THAT(message_of([&] {
                  DistributedDataParallel(
                      WithBuffer(first ? expanded.clone() : expanded),
                      {.group = group});
                }),
                HasSubstr("buffer whitening Float [3, 2] expanded"));
  });
}

TEST(Replica, RefusesTensorsWithoutElementsOfTheirOwnByName) {
  run_ranks(kBackend, 2, [](const Group& group) {
    const auto refusal = [&](const at::Tensor& buffer) {
      return message_of([&] {
        DistributedDataParallel(WithBuffer(buffer), {.group = group});
      });
    };
    EXPECT_THAT(refusal(torch::ones({6}).unfold(0, 3, 1)),
                HasSubstr("buffer whitening cannot be copied to all ranks: it "
                          "is written, but several of its elements share"));
    EXPECT_THAT(refusal(torch::empty({2}, at::kMeta)),
                HasSubstr("buffer whitening cannot be copied to all ranks: it "
                          "is on the meta device"));
  });
}

TEST(Replica, AdvisesToHoldAComplexParameterAsPairs) {
  struct Complex : torch::nn::Module {
    Complex() { register_parameter("w", torch::ones({4}, at::kComplexFloat)); }
  };
  run_ranks(kBackend, 2, [](const Group& group) {
    EXPECT_THAT(
        message_of(
            [&] { DistributedDataParallel(Complex(), {.group = group}); }),
        AllOf(HasSubstr("parameter w cannot be reduced: it is of complex type "
                        "ComplexFloat\n  next:    use at::view_as_real"),
              Not(HasSubstr("with to()"))));
  });
}

TEST(Replica, RefusesToWrapAModelTwice) {
  run_ranks(kBackend, 2, [](const Group& group) {
    auto net = std::make_shared<Net>();
    {
      auto model = DistributedDataParallel(net, {.group = group});
      EXPECT_THAT(
          message_of([&] { DistributedDataParallel(net, {.group = group}); }),
          HasSubstr("first.weight is reduced by another"));
      backward(model, *group);
    }
    auto again = DistributedDataParallel(net, {.group = group});
    net->zero_grad();
    backward(again, *group);
    EXPECT_LE(
        largest_difference(gradients_of(*net), gradients_of_one_process(2)),
        kTolerance);
  });
}

TEST(Replica, UsesTheDefaultGroup) {
  EXPECT_THAT(message_of([] { DistributedDataParallel{Net()}; }),
              HasSubstr("there is no default group"));
}

}  // namespace
}  // namespace lockstep
