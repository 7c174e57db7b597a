#include "lockstep/torch/distributed_data_parallel.h"

#include <gtest/gtest.h>

#include <sstream>
#include <tuple>
#include <type_traits>

#include "lockstep/base/error.h"
#include "src/comm/testing/run_ranks.h"
#include "src/torch/tensor/module_tensors.h"
#include "src/torch/testing/small_nets.h"

namespace lockstep {
namespace {

torch::optim::SGD sgd_with_momentum(std::vector<at::Tensor> parameters) {
  return torch::optim::SGD(std::move(parameters),
                           torch::optim::SGDOptions(0.1).momentum(0.9));
}

// What one process learns from the whole batches.
template <class Module>
std::vector<at::Tensor> weights_of_one_process(Module model, int shares,
                                               int steps) {
  auto optimizer = sgd_with_momentum(distinct_parameters(model));
  train(
      model, optimizer,
      [&](int step) { return share_of_batch(step, 0, 1, shares); }, steps);
  return distinct_parameters(model);
}

struct Setting {
  const char* backend;
  int ranks;
  std::size_t first_bucket_bytes, bucket_bytes;
};
class Ranks : public testing::TestWithParam<Setting> {};

TEST_P(Ranks, LearnWhatOneProcessLearns) {
  const Setting& setting = GetParam();
  const int ranks = setting.ranks;
  const auto expected = weights_of_one_process(Net(), ranks, 6);
  run_ranks(setting.backend, ranks, [&](const Group& group) {
    Net net;
    fill(net, group->rank());
    auto model = DistributedDataParallel(
        std::move(net), {.group = group,
                         .first_bucket_bytes = setting.first_bucket_bytes,
                         .bucket_bytes = setting.bucket_bytes});
    auto optimizer = sgd_with_momentum(model.parameters());
    const auto share_of_step = [&](int step) {
      return share_of_batch(step, group->rank(), ranks, ranks);
    };
    train(model, optimizer, share_of_step, 6);
    EXPECT_LE(largest_difference(model.parameters(), expected), kTolerance);
  });
}

TEST(DistributedDataParallel, IsSavedAndLoadedAsItsModule) {
  run_ranks(kBackend, 2, [](const Group& group) {
    NetWithBatchNorm net;
    fill(net, 3);
    auto model = DistributedDataParallel(std::move(net), {.group = group});
    std::stringstream file;
    torch::save(model, file);
    const auto alone = std::make_shared<NetWithBatchNorm>();
    torch::load(alone, file);
    EXPECT_EQ(largest_difference(alone->parameters(), model.parameters()), 0);

    fill(*alone, 5);
    std::stringstream other;
    torch::save(alone, other);
    // Replicas and peers share the memory of parameters, so they stay in it.
    const auto memory_of_model = [&] {
      std::vector<const void*> memory;
      for (const at::Tensor& parameter : model.parameters())
        memory.push_back(parameter.data_ptr());
      return memory;
    };
    const auto before = memory_of_model();
    torch::load(model, other);
    EXPECT_EQ(memory_of_model(), before);
    EXPECT_EQ(largest_difference(alone->parameters(), model.parameters()), 0);
    EXPECT_EQ(largest_difference(alone->buffers(), model.buffers()), 0);
  });
}

TEST(DistributedDataParallel, KeepsItsWeightsWhereAFileHasOthers) {
  run_ranks(kBackend, 2, [](const Group& group) {
    auto model = DistributedDataParallel(torch::nn::Linear(3, 2).ptr(),
                                         {.group = group});
    const at::Tensor before = model.module()->weight.detach().clone();
    std::stringstream file;
    torch::save(torch::nn::Linear(4, 2), file);
    EXPECT_THAT(message_of([&] { torch::load(model, file); }),
                HasSubstr("cannot load a tensor of [2, 4]"));
    EXPECT_TRUE(model.module()->weight.equal(before));
  });
}

INSTANTIATE_TEST_SUITE_P(
    AndBuckets, Ranks,
    testing::Values(
        Setting{"shm", 1, 0, 0}, Setting{"shm", 2, 0, 0},
        Setting{"shm", 2, 100, 200}, Setting{"shm", 2, 1 << 20, 25 << 20},
        Setting{"shm", 3, 100, 200}, Setting{"shm", 4, 1 << 20, 25 << 20},
        Setting{"shm", 4, 0, 150}, Setting{"reference", 2, 100, 200},
        Setting{"reference", 4, 1 << 20, 25 << 20}),
    [](const auto& setting) {
      return std::string(setting.param.backend) +
             std::to_string(setting.param.ranks) + "RanksCaps" +
             std::to_string(setting.param.first_bucket_bytes) + "And" +
             std::to_string(setting.param.bucket_bytes);
    });

TEST(DistributedDataParallel, AcceptsAModuleAPointerToOneAndAHolder) {
  run_ranks(kBackend, 1, [](const Group& group) {
    auto pointer = std::make_shared<Net>();
    torch::nn::Linear holder(6, 3);
    auto of_module = DistributedDataParallel(Net(), {.group = group});
    auto of_pointer = DistributedDataParallel(pointer, {.group = group});
    auto of_holder = DistributedDataParallel(holder, {.group = group});
    static_assert(
        std::is_same_v<decltype(of_module), DistributedDataParallel<Net>>);
    static_assert(
        std::is_same_v<decltype(of_pointer), DistributedDataParallel<Net>>);
    static_assert(
        std::is_same_v<decltype(of_holder),
                       DistributedDataParallel<torch::nn::LinearImpl>>);
    EXPECT_EQ(of_pointer.module(), pointer);
    EXPECT_EQ(of_holder.module(), holder.ptr());
  });
}

TEST(DistributedDataParallel, ForwardsWithTheModulesOwnArgumentsAndResult) {
  struct TwoOutputs : torch::nn::Module {
    TwoOutputs() { weight = register_parameter("weight", wave({2}, 0)); }
    std::tuple<at::Tensor, int> forward(const at::Tensor& input,
                                        int number = 7) {
      return {input * weight, number};
    }
    at::Tensor weight;
  };
  run_ranks(kBackend, 1, [](const Group& group) {
    auto model = DistributedDataParallel(TwoOutputs(), {.group = group});
    EXPECT_EQ(std::get<1>(model(wave({2}, 1))), 7);
    EXPECT_EQ(std::get<1>(model.forward(wave({2}, 1), 8)), 8);
  });
}

TEST(DistributedDataParallel, GivesAGroupOfOneThatReducesAloneItsOwnGradients) {
  for (const bool alone : {false, true})
    run_ranks(kBackend, 1, [&](const Group& group) {
      Net plain;
      DistributedDataParallel model(Net(),
                                    {.group = group, .reduce_alone = alone});
      for (int step = 0; step < 3; ++step) {
        const at::Tensor input = wave({4, 6}, step);
        plain.zero_grad();
        plain.forward(input).sum().backward();
        model.zero_grad();
        model(input).sum().backward();
        const auto expected = gradients_of(plain);
        const auto found = gradients_of(*model);
        for (std::size_t i = 0; i < expected.size(); ++i)
          EXPECT_TRUE(found[i].equal(expected[i])) << "step " << step;
      }
    });
}

TEST(DistributedDataParallel, NamesParametersAsTheModuleDoes) {
  run_ranks(kBackend, 1, [](const Group& group) {
    auto model = DistributedDataParallel(Net(), {.group = group});
    EXPECT_EQ(model.named_parameters().keys(),
              model.module()->named_parameters().keys());
    EXPECT_EQ(model.named_parameters().keys().front(), "first.weight");
    model.eval();
    EXPECT_FALSE(model->is_training());
    model.train();
    EXPECT_TRUE(model->is_training());
  });
}

TEST(DistributedDataParallel, WorksAfterTheWrapperHasMoved) {
  const auto expected = gradients_of_one_process(2);
  run_ranks(kBackend, 2, [&](const Group& group) {
    auto made = DistributedDataParallel(Net(), small_buckets(group));
    auto moved = std::move(made);
    std::vector<DistributedDataParallel<Net>> models;
    models.push_back(std::move(moved));
    backward(models.front(), *group);
    EXPECT_LE(largest_difference(gradients_of(*models.front()), expected),
              kTolerance);
  });
}

TEST(DistributedDataParallel, AveragesTheGradientsOfTiedWeightsOnce) {
  struct Tied : torch::nn::Module {
    Tied() {
      inner = register_module("inner", torch::nn::Linear(6, 6));
      outer = register_module("outer", torch::nn::Linear(6, 3));
      register_module("inner_again", inner);
      fill(*this, 0);
    }
    at::Tensor forward(const at::Tensor& input) {
      return outer(inner(torch::tanh(inner(input))));
    }
    torch::nn::Linear inner{nullptr}, outer{nullptr};
  };
  const auto expected = weights_of_one_process(Tied(), 2, 4);
  run_ranks(kBackend, 2, [&](const Group& group) {
    auto model = DistributedDataParallel(Tied(), small_buckets(group));
    auto optimizer = sgd_with_momentum(model.parameters());
    const auto share_of_step = [&](int step) {
      return share_of_batch(step, group->rank(), 2, 2);
    };
    train(model, optimizer, share_of_step, 4);
    EXPECT_LE(largest_difference(model.parameters(), expected), kTolerance);
  });
}

TEST(DistributedDataParallel, LeavesFrozenParametersAlone) {
  struct HalfFrozen : Net {
    HalfFrozen() { first->weight.requires_grad_(false); }
  };
  const auto expected = weights_of_one_process(HalfFrozen(), 2, 3);
  run_ranks(kBackend, 2, [&](const Group& group) {
    auto model = DistributedDataParallel(HalfFrozen(), small_buckets(group));
    auto optimizer = sgd_with_momentum(model.parameters());
    const auto share_of_step = [&](int step) {
      return share_of_batch(step, group->rank(), 2, 2);
    };
    train(model, optimizer, share_of_step, 3);
    EXPECT_FALSE(model->first->weight.grad().defined());
    EXPECT_LE(largest_difference(model.parameters(), expected), kTolerance);
  });
}

TEST(DistributedDataParallel, SumsUpTwoForwardPassesBeforeOneBackwardPass) {
  NetWithBatchNorm alone;
  alone.norm->eval();  // statistics of a whole batch are not those of shares
  at::Tensor loss = torch::zeros({});
  for (const int step : {0, 1}) {
    const Share batch = share_of_batch(step, 0, 1, 2);
    loss = loss + loss_of(alone.forward(batch.input), batch.target);
  }
  loss.backward();
  const auto expected = gradients_of(alone);

  run_ranks(kBackend, 2, [&](const Group& group) {
    auto model = DistributedDataParallel(NetWithBatchNorm(), {.group = group});
    model->norm->eval();
    at::Tensor sum = torch::zeros({});
    for (const int step : {0, 1}) {
      const Share share = share_of_batch(step, group->rank(), 2, 2);
      sum = sum + loss_of(model(share.input), share.target);
    }
    sum.backward();
    EXPECT_LE(largest_difference(gradients_of(*model), expected), kTolerance);
  });
}

TEST(DistributedDataParallel, MayRunForwardTwiceInTrainingWithBuffers) {
  run_ranks(kBackend, 2, [](const Group& group) {
    auto model = DistributedDataParallel(NetWithBatchNorm(), {.group = group});
    const Share share = share_of_batch(0, group->rank(), 2, 2);
    const at::Tensor first = model(share.input);
    const at::Tensor second = model(share.input);
    EXPECT_NO_THROW(loss_of(first + second, share.target).backward());
  });
}

// Steps 0 and 1 are accumulated; `clear` prepares .grad for each of two rounds.
void accumulate_twice(const std::function<void(torch::nn::Module&)>& clear) {
  Net alone;
  for (const int step : {0, 1}) {
    const Share batch = share_of_batch(step, 0, 1, 2);
    loss_of(alone.forward(batch.input), batch.target).backward();
  }
  const auto expected = gradients_of(alone);
  run_ranks(kBackend, 2, [&](const Group& group) {
    auto model = DistributedDataParallel(Net(), small_buckets(group));
    for (int round = 0; round < 3; ++round) {
      clear(*model);
      backward(model, *group, 0);
      backward(model, *group, 1);
      EXPECT_LE(largest_difference(gradients_of(*model), expected), kTolerance);
    }
  });
}

TEST(DistributedDataParallel, AccumulatesGradientsAfterTheyAreDropped) {
  accumulate_twice([](torch::nn::Module& module) { module.zero_grad(true); });
}

TEST(DistributedDataParallel, AccumulatesGradientsAfterTheyAreZeroed) {
  accumulate_twice([](torch::nn::Module& module) { module.zero_grad(false); });
}

TEST(DistributedDataParallel, AveragesGradientsOfEveryFloatingPointType) {
  for (const at::ScalarType type :
       {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
    run_ranks(kBackend, 2, [&](const Group& group) {
      auto net = std::make_shared<Net>();
      net->to(type);
      auto model = DistributedDataParallel(net, small_buckets(group));
      at::Tensor sum = torch::zeros({}, type);
      for (const at::Tensor& parameter : net->parameters())
        sum = sum + (parameter * (group->rank() + 1)).sum();
      sum.backward();
      for (const at::Tensor& parameter : net->parameters()) {
        EXPECT_EQ(parameter.grad().scalar_type(), type);
        EXPECT_TRUE((parameter.grad() == 1.5).all().item<bool>());
      }
    });
  }
}

TEST(DistributedDataParallel, AveragesGradientsOfMixedTypes) {
  run_ranks(kBackend, 2, [](const Group& group) {
    auto net = std::make_shared<Net>();
    net->second->to(at::kDouble);
    auto model = DistributedDataParallel(net, small_buckets(group));
    at::Tensor sum = torch::zeros({}, at::kDouble);
    for (const at::Tensor& parameter : net->parameters())
      sum = sum + (parameter * (group->rank() + 1)).sum().to(at::kDouble);
    sum.backward();
    for (const at::Tensor& parameter : net->parameters())
      EXPECT_TRUE((parameter.grad() == 1.5).all().item<bool>());
  });
}

TEST(DistributedDataParallel, KeepsTheStridesOfParametersThatAreNotRowMajor) {
  struct Strided : torch::nn::Module {
    Strided() {
      weight = register_parameter(
          "weight",
          wave({4, 3, 2, 2}, 0).contiguous(at::MemoryFormat::ChannelsLast));
      transposed = register_parameter("transposed", wave({5, 3}, 1).t());
    }
    at::Tensor forward(double factor) {
      return (weight * wave({4, 3, 2, 2}, 5) * factor).sum() +
             (transposed * wave({3, 5}, 6) * factor).sum();
    }
    at::Tensor weight, transposed;
  };
  run_ranks(kBackend, 2, [](const Group& group) {
    auto model = DistributedDataParallel(Strided(), {.group = group});
    for (int step = 0; step < 3; ++step) {
      model.zero_grad();
      model(group->rank() * 2.0).backward();
      EXPECT_LE(largest_difference(gradients_of(*model),
                                   {wave({4, 3, 2, 2}, 5), wave({3, 5}, 6)}),
                kTolerance);
      EXPECT_EQ(model->weight.grad().strides(), model->weight.strides());
      EXPECT_EQ(model->transposed.grad().strides(),
                model->transposed.strides());
    }
  });
}

}  // namespace
}  // namespace lockstep
