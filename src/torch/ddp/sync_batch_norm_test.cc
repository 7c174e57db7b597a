// Every test, except those of refusals, compares with LibTorch's batch
// normalization of all ranks' samples in one process.
#include "lockstep/torch/sync_batch_norm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>

#include <mutex>
#include <tuple>

#include "lockstep/base/error.h"
#include "lockstep/torch/distributed_data_parallel.h"
#include "src/comm/testing/run_ranks.h"
#include "src/torch/testing/recording_group.h"
#include "src/torch/testing/small_nets.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using torch::nn::BatchNormOptions;

constexpr double kClose = 1e-5;

// The results of a pass over a batch, or over a rank's part of it.
struct PassResult {
  at::Tensor output, input_gradient;
  std::vector<at::Tensor> parameter_gradients, buffers;
};

// The loss weighs every output differently, and is a sum, so that gradients of
// parts add up to those of the whole.
template <class Norm>
PassResult pass(Norm& norm, const at::Tensor& batch, const at::Tensor& factor) {
  const at::Tensor input = batch.clone().requires_grad_();
  const at::Tensor output = norm->forward(input);
  (output * factor).sum().backward();
  return {output.detach(), input.grad(), gradients_of(*norm), norm->buffers()};
}

template <class Norm>
void give_parameters(Norm& norm, at::ScalarType type) {
  norm->to(type);
  const torch::NoGradGuard no_grad;
  double phase = 0.5;
  for (at::Tensor& parameter : norm->parameters())
    parameter.copy_(wave(parameter.sizes(), phase += 1) + 0.7);
}

// The begin of a rank's part of `samples`; later ranks have larger parts.
std::int64_t begin_of(int rank, int ranks, std::int64_t samples) {
  return samples * rank * (rank + 1) / (ranks * (ranks + 1));
}

struct Case {
  std::vector<std::int64_t> rest;  // of the shape, after samples and features
  at::ScalarType type = at::kFloat;
};

// Two steps; momentum and eps are not the usual ones.
template <class Theirs>
void compare_with_whole_batch(const Case& job, int ranks,
                              std::int64_t samples) {
  constexpr std::int64_t kFeatures = 3;
  const auto options = BatchNormOptions(kFeatures).momentum(0.3).eps(1e-3);
  std::vector<std::int64_t> shape{samples, kFeatures};
  shape.insert(shape.end(), job.rest.begin(), job.rest.end());
  Theirs theirs(options);
  give_parameters(theirs, job.type);
  std::vector<PassResult> whole;
  std::vector<at::Tensor> batches, factors;
  for (int step = 0; step < 2; ++step) {
    batches.push_back((wave(shape, step) * 3 + 1).to(job.type));
    factors.push_back(wave(shape, 40 + step).to(job.type));
    whole.push_back(pass(theirs, batches.back(), factors.back()));
  }
  std::mutex mutex;
  std::vector<at::Tensor> sums{torch::zeros({kFeatures}, job.type),
                               torch::zeros({kFeatures}, job.type)};
  run_ranks(kBackend, ranks, [&](const Group& group) {
    SyncBatchNorm ours(options, group);
    give_parameters(ours, job.type);
    const std::int64_t begin = begin_of(group->rank(), ranks, samples);
    const std::int64_t count =
        begin_of(group->rank() + 1, ranks, samples) - begin;
    PassResult part;
    for (std::size_t step = 0; step < 2; ++step) {
      part = pass(ours, batches[step].narrow(0, begin, count),
                  factors[step].narrow(0, begin, count));
      EXPECT_LE(largest_difference(
                    {part.output, part.input_gradient},
                    {whole[step].output.narrow(0, begin, count),
                     whole[step].input_gradient.narrow(0, begin, count)}),
                kClose)
          << "step " << step << ", " << count << " of " << samples;
    }
    EXPECT_LE(largest_difference(part.buffers, whole[1].buffers), kClose);
    const std::lock_guard lock(mutex);
    for (std::size_t i = 0; i < 2; ++i) sums[i] += part.parameter_gradients[i];
  });
  // Gradients of both steps have added up.
  EXPECT_LE(largest_difference(sums, whole[1].parameter_gradients), kClose * 10)
      << ranks;
}

class SyncBatchNormOnRanks
    : public testing::TestWithParam<std::tuple<int, at::ScalarType>> {};

TEST_P(SyncBatchNormOnRanks, IsThatOfTheWholeBatchInAnyShape) {
  const auto [ranks, type] = GetParam();
  for (const std::int64_t samples : {13, 2})  // with 2, some ranks have none
    for (const Case& job : {Case{{}, type}, Case{{5}, type}})
      compare_with_whole_batch<torch::nn::BatchNorm1d>(job, ranks, samples);
  compare_with_whole_batch<torch::nn::BatchNorm2d>({{4, 3}, type}, ranks, 11);
  compare_with_whole_batch<torch::nn::BatchNorm3d>({{2, 3, 2}, type}, ranks, 7);
}

INSTANTIATE_TEST_SUITE_P(, SyncBatchNormOnRanks,
                         testing::Combine(testing::Values(1, 2, 3, 4),
                                          testing::Values(at::kFloat,
                                                          at::kDouble)));

TEST(SyncBatchNorm, KeepsItsDigitsFarFromZero) {
  const at::Tensor batch = wave({16, 3}, 1) + 3000;
  torch::nn::BatchNorm1d theirs(3);
  theirs->to(at::kDouble);
  const at::Tensor expected = theirs(batch.to(at::kDouble));
  run_ranks(kBackend, 2, [&](const Group& group) {
    SyncBatchNorm norm(3, group);
    const at::Tensor output =
        norm(batch.narrow(0, 8 * group->rank(), 8)).to(at::kDouble);
    // The precision of float32 for such inputs.
    EXPECT_LE(largest_difference({output},
                                 {expected.narrow(0, 8 * group->rank(), 8)}),
              2e-3);
  });
}

TEST(SyncBatchNorm, TakesChannelsLastAndSixteenBits) {
  const at::Tensor batch = wave({8, 4, 3, 3}, 1);
  torch::nn::BatchNorm2d theirs(4);
  const PassResult whole = pass(theirs, batch, batch.square());
  run_ranks(kBackend, 2, [&](const Group& group) {
    SyncBatchNorm ours(4, group);
    const auto part = [&](const at::Tensor& of) {
      return of.narrow(0, 4 * group->rank(), 4);
    };
    const PassResult last =
        pass(ours, part(batch).contiguous(at::MemoryFormat::ChannelsLast),
             part(batch.square()));
    EXPECT_LE(
        largest_difference({last.output, last.input_gradient},
                           {part(whole.output), part(whole.input_gradient)}),
        kClose);
    const at::Tensor half =
        part(batch).to(at::kBFloat16).detach().requires_grad_();
    const at::Tensor output = ours(half);
    EXPECT_EQ(output.scalar_type(), at::kBFloat16);
    EXPECT_LE(largest_difference({output.to(at::kFloat)}, {part(whole.output)}),
              0.03);
    output.sum().backward();
    EXPECT_EQ(half.grad().scalar_type(), at::kBFloat16);
  });
}

TEST(SyncBatchNorm, AveragesOverAllBatchesWithoutMomentum) {
  const auto options = BatchNormOptions(3).momentum(std::nullopt).affine(false);
  torch::nn::BatchNorm1d theirs(options);
  for (int step = 0; step < 3; ++step) theirs(wave({8, 3}, step));
  run_ranks(kBackend, 2, [&](const Group& group) {
    SyncBatchNorm ours(options, group);
    for (int step = 0; step < 3; ++step) {
      const at::Tensor input =
          wave({8, 3}, step).narrow(0, 4 * group->rank(), 4).requires_grad_();
      ours(input).square().sum().backward();
    }
    EXPECT_LE(largest_difference(ours->buffers(), theirs->buffers()), kClose);
    EXPECT_THAT(ours->parameters(), IsEmpty());
  });
}

TEST(SyncBatchNorm, ExchangesNothingInEvaluation) {
  run_ranks(kBackend, 2, [](const Group& real) {
    const RecordingGroup recorded(real);
    for (const bool tracks : {true, false}) {
      const auto options = BatchNormOptions(3).track_running_stats(tracks);
      SyncBatchNorm ours(options, recorded.group());
      torch::nn::BatchNorm1d theirs(options);
      ours->eval();
      theirs->eval();
      const at::Tensor input = wave({4, 3}, real->rank());
      EXPECT_TRUE(ours(input).equal(theirs(input)));
    }
    EXPECT_THAT(recorded.take_events(), IsEmpty());
    SyncBatchNorm ours(3, recorded.group());
    ours(wave({4, 3}, real->rank()).requires_grad_()).sum().backward();
    EXPECT_THAT(recorded.take_events(),
                ElementsAre("all_gather", "all_reduce"));
  });
}

// A member of each kind, and LibTorch's in a Sequential.
struct ConvertibleNet : torch::nn::Module {
  ConvertibleNet() {
    first = register_module("first", torch::nn::Linear(6, 5));
    norm = register_module("norm", BatchNorm(5));
    rest = register_module(
        "rest", torch::nn::Sequential(
                    torch::nn::Tanh(), torch::nn::Linear(5, 4),
                    torch::nn::BatchNorm1d(4), torch::nn::Linear(4, 3)));
    fill(*this, 0);
  }
  at::Tensor forward(const at::Tensor& input) {
    return rest->forward(norm(first(input)));
  }
  torch::nn::Linear first{nullptr};
  BatchNorm norm{nullptr};
  torch::nn::Sequential rest{nullptr};
};

std::vector<std::string> names_in(const torch::nn::Module& module) {
  std::vector<std::string> names = module.named_parameters().keys();
  for (const std::string& name : module.named_buffers().keys())
    names.push_back(name);
  return names;
}

TEST(ConvertSyncBatchNorm, TrainsUnderDdpAsOneProcessOnTheWholeBatch) {
  for (const int ranks : {2, 3, 4}) {
    ConvertibleNet one;
    torch::optim::SGD its(one.parameters(), 0.1);
    train(
        one, its, [&](int step) { return share_of_batch(step, 0, 1, ranks); },
        5);
    run_ranks(kBackend, ranks, [&](const Group& group) {
      ConvertibleNet net;
      EXPECT_EQ(convert_sync_batch_norm(net, group), 2);
      auto model =
          DistributedDataParallel(std::move(net), small_buckets(group));
      torch::optim::SGD optimizer(model.parameters(), 0.1);
      train(
          model, optimizer,
          [&](int step) {
            return share_of_batch(step, group->rank(), ranks, ranks);
          },
          5);
      EXPECT_LE(largest_difference(model.parameters(), one.parameters()),
                kClose);
      EXPECT_LE(largest_difference(model.buffers(), one.buffers()), kClose);
    });
  }
}

TEST(ConvertSyncBatchNorm, KeepsTheTensorsTheirNamesAndTheMode) {
  run_ranks(kBackend, 2, [](const Group& group) {
    ConvertibleNet net;
    net.eval();
    const auto names = names_in(net);
    const auto before = net.parameters();
    convert_sync_batch_norm(net, group);
    EXPECT_EQ(names_in(net), names);
    for (std::size_t i = 0; i < before.size(); ++i)
      EXPECT_TRUE(net.parameters()[i].is_same(before[i])) << i;
    for (const auto& module : net.modules(/*include_self=*/false))
      EXPECT_FALSE(module->is_training());
    EXPECT_EQ(net.norm->statistics(), BatchStatistics::kOfGroup);
  });
}

TEST(ConvertSyncBatchNorm, SurvivesACloneWithItsGroup) {
  run_ranks(kBackend, 2, [](const Group& group) {
    torch::nn::Sequential net(torch::nn::BatchNorm1d(3));
    convert_sync_batch_norm(*net, group);
    const at::Tensor input = wave({4, 3}, group->rank());
    const at::Tensor expected = net->forward(input);
    auto norm = std::dynamic_pointer_cast<SyncBatchNormImpl>(
        net->children()[0]->clone());
    ASSERT_TRUE(norm);
    EXPECT_TRUE(norm->forward(input).equal(expected));
    EXPECT_FALSE(torch::nn::BatchNorm1d(3)->forward(input).equal(expected));
  });
}

TEST(ConvertSyncBatchNorm, RefusesMembersOfLibTorchsTypesAndChangesNothing) {
  struct Mixed : torch::nn::Module {
    BatchNorm ours = register_module("ours", BatchNorm(3));
    torch::nn::BatchNorm2d theirs =
        register_module("theirs", torch::nn::BatchNorm2d(3));
  };
  run_ranks(kBackend, 2, [](const Group& group) {
    Mixed mixed;
    EXPECT_THAT(message_of([&] { convert_sync_batch_norm(mixed, group); }),
                AllOf(HasSubstr("theirs of "), HasSubstr("Mixed"),
                      HasSubstr("declare it as lockstep::BatchNorm")));
    EXPECT_EQ(mixed.ours->statistics(), BatchStatistics::kOfRank);
    EXPECT_THAT(
        message_of([&] { convert_sync_batch_norm(*mixed.theirs, group); }),
        HasSubstr("the module itself"));
  });
}

TEST(ConvertSyncBatchNorm, RefusesAStepThatIsHeldElsewhere) {
  run_ranks(kBackend, 2, [](const Group& group) {
    torch::nn::BatchNorm1d held(3);
    torch::nn::Sequential net(torch::nn::Linear(3, 3), held);
    EXPECT_THAT(message_of([&] { convert_sync_batch_norm(*net, group); }),
                HasSubstr("1, which another object holds too"));
    held = nullptr;
    EXPECT_EQ(convert_sync_batch_norm(*net, group), 1);
  });
}

TEST(ConvertSyncBatchNorm, LeavesGraphsThatDifferAloneByItsOwnGroup) {
  // Each rank skips a different layer, so that buckets start at different
  // points among the normalization's collectives.
  struct Gated : torch::nn::Module {
    Gated() {
      for (int i = 0; i < 4; ++i) {
        const std::string number = std::to_string(i);
        layers.push_back(
            register_module("layer" + number, torch::nn::Linear(3, 3)));
        norms.push_back(register_module("norm" + number, BatchNorm(3)));
      }
      fill(*this, 0);
    }
    at::Tensor forward(at::Tensor x, std::size_t left_out) {
      for (std::size_t i = 0; i < layers.size(); ++i)
        x = norms[i]((i == left_out ? x : layers[i](x)).tanh());
      return x;
    }
    std::vector<torch::nn::Linear> layers;
    std::vector<BatchNorm> norms;
  };
  run_ranks(kBackend, 3, [](const Group& group) {
    Gated net;
    convert_sync_batch_norm(net, group);
    DistributedDataParallelOptions options = small_buckets(group);
    options.find_unused_parameters = true;
    auto model = DistributedDataParallel(std::move(net), options);
    for (int step = 0; step < 6; ++step) {
      model.zero_grad();
      const auto left_out = static_cast<std::size_t>(step + group->rank()) % 4;
      model(wave({4, 3}, step + group->rank()), left_out)
          .square()
          .mean()
          .backward();
    }
  });
}

DistributedDataParallel<ConvertibleNet> converted_net(
    DistributedDataParallelOptions options) {
  ConvertibleNet net;
  convert_sync_batch_norm(net, options.group);
  return DistributedDataParallel(std::move(net), options);
}

// Rank 1 throws after the last layers' gradients have arrived; the other rank
// is, or will be, in the backward pass of `norm`.
void expect_that_nobody_waits(DistributedDataParallel<ConvertibleNet>& model,
                              const Group& group) {
  at::Tensor hidden = model->norm(model->first(wave({4, 6}, group->rank())));
  if (group->rank() == 1)
    hidden.register_hook([](const at::Tensor& gradient) {
      throw std::runtime_error("a hook of the user's");
      return gradient;
    });
  EXPECT_THAT(
      message_of([&] { model->rest->forward(hidden).sum().backward(); }),
      HasSubstr(group->rank() == 1 ? "a hook of the user's"
                                   : "rank 1 left its backward"));
}

TEST(ConvertSyncBatchNorm, LetsNobodyWaitForARankThatLeftItsBackwardPass) {
  run_ranks(kBackend, 2, [](const Group& group) {
    auto model = converted_net(small_buckets(group));
    expect_that_nobody_waits(model, group);
  });
}

TEST(ConvertSyncBatchNorm, LetsNobodyWaitForARankThatLeftALocalPass) {
  run_ranks(kBackend, 2, [](const Group& group) {
    auto model = converted_net(small_buckets(group));
    const auto scope = model.no_sync();
    expect_that_nobody_waits(model, group);
    EXPECT_NO_THROW(group->barrier().wait());  // not part of a local pass
  });
}

TEST(ConvertSyncBatchNorm, TellsThoseWhoWaitWhy) {
  run_ranks(kBackend, 2, [](const Group& group) {
    DistributedDataParallelOptions options = small_buckets(group);
    options.static_graph = true;
    auto model = converted_net(options);
    const auto normalized = [&] {
      return model->norm(model->first(wave({4, 6}, group->rank())));
    };
    normalized().square().sum().backward();
    const at::Tensor hidden = normalized();
    // Gradients that the first pass did not bring, before those of `norm`.
    const at::Tensor more =
        group->rank() == 1
            ? model->rest->at<torch::nn::LinearImpl>(1).forward(hidden)
            : hidden;
    EXPECT_THAT(message_of([&] { more.square().sum().backward(); }),
                HasSubstr("that it did not get in the first pass"));
  });
}

TEST(SyncBatchNorm, RefusesTooFewSamplesOnEveryRank) {
  run_ranks(kBackend, 2, [](const Group& group) {
    SyncBatchNorm norm(3, group);
    const auto samples = group->rank() == 0 ? 1 : 0;
    EXPECT_THAT(message_of([&] {
                  norm(torch::ones({samples, 3}));
                }),
                AllOf(HasSubstr("together have 1 numbers per feature"),
                      HasSubstr("next:")));
    EXPECT_NO_THROW(norm(wave({1, 3}, group->rank())));
  });
}

TEST(SyncBatchNorm, RefusesWhatIsNoBatch) {
  run_ranks(kBackend, 2, [](const Group& group) {
    SyncBatchNorm norm(3, group);
    for (const auto& shape : std::vector<std::vector<std::int64_t>>{
             {3}, {2, 4}, {2, 3, 1, 1, 1, 1}})
      EXPECT_THAT(message_of([&] { norm(torch::ones(shape)); }),
                  HasSubstr("normalization of 3 features"));
    EXPECT_THAT(message_of([&] {
                  norm(torch::ones({2, 3}, torch::kLong));
                }),
                HasSubstr("type Long"));
  });
}

TEST(SyncBatchNorm, RefusesGradientsOfGradients) {
  run_ranks(kBackend, 2, [](const Group& group) {
    SyncBatchNorm norm(3, group);
    const at::Tensor input = wave({4, 3}, group->rank()).requires_grad_();
    const at::Tensor loss = norm(input).square().sum();
    EXPECT_THAT(message_of([&] {
                  loss.backward({}, /*retain_graph=*/true,
                                /*create_graph=*/true);
                }),
                HasSubstr("create_graph"));
    EXPECT_NO_THROW(group->barrier().wait());
  });
}

}  // namespace
}  // namespace lockstep
