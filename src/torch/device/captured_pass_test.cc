// Tests of captured and replayed passes, on a fake CUDA: see
// src/torch/testing/fake_cuda.h.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <memory>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/torch/distributed_data_parallel.h"
#include "lockstep/torch/gpu_pass.h"
#include "src/base/testing/error_text.h"
#include "src/torch/device/device_streams.h"
#include "src/torch/testing/cuda_ranks.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;
using Group = std::shared_ptr<ProcessGroup>;
using CapturedNet = torch::nn::SequentialImpl;

constexpr int kCapturedSteps = 8;

std::shared_ptr<CapturedNet> make_net(at::Device device) {
  auto net = std::make_shared<CapturedNet>(torch::nn::Linear(6, 8),
                                           torch::nn::BatchNorm1d(8),
                                           torch::nn::Linear(8, 3));
  const at::NoGradGuard no_grad;
  for (at::Tensor& parameter : net->parameters())
    parameter.copy_(torch::arange(parameter.numel(), at::kFloat)
                        .view(parameter.sizes())
                        .sin());
  net->to(device);
  return net;
}

// A rank's batch in a step; the last one is shorter.
at::Tensor batch_of(int rank, int step) {
  at::Tensor batch = torch::arange(24, at::kFloat).view({4, 6});
  batch = (batch * (rank + 1) + step).sin();
  return step == kCapturedSteps - 1 ? batch.narrow(0, 0, 3) : batch;
}

// A rank's training on a GPU, its passes captured or not. A single rank reduces
// in captured passes only, which changes no number.
class Training {
 public:
  Training(const Group& group, bool captured)
      : device_(gpu_of(*group)),
        stream_(device_),
        model_(make_net(device_), {.group = group,
                                   .first_bucket_bytes = 64,
                                   .bucket_bytes = 128,
                                   .reduce_alone = captured}),
        optimizer_(model_.parameters(), torch::optim::SGDOptions(0.1)),
        pass_(group, model_.parameters(),
              [this](at::TensorList inputs) { return pass(inputs); }),
        captured_(captured) {}

  // The loss.
  at::Tensor step(const at::Tensor& batch) {
    optimizer_.zero_grad();
    const std::vector<at::Tensor> inputs{batch.to(device_)};
    const auto outputs = captured_ ? pass_.run(inputs) : pass(inputs);
    optimizer_.step();
    return outputs.front().cpu();
  }

  std::vector<at::Tensor> state() const {
    auto all = on_cpu(model_.parameters());
    for (const at::Tensor& buffer : on_cpu(model_.buffers()))
      all.push_back(buffer);
    return all;
  }
  std::vector<at::Tensor> parameters() const { return model_.parameters(); }
  bool replayed() const { return pass_.replayed(); }
  int passes() const { return passes_; }

 private:
  std::vector<at::Tensor> pass(at::TensorList inputs) {
    ++passes_;
    const at::Tensor loss = model_(inputs[0]).square().mean();
    loss.backward();
    return {loss.detach()};
  }

  const at::Device device_;
  const StreamOfItsOwn stream_;
  DistributedDataParallel<CapturedNet> model_;
  torch::optim::SGD optimizer_;
  CapturedPass pass_;
  const bool captured_;
  int passes_ = 0;
};

using CapturedPassOnCuda = CudaRanks;

TEST_F(CapturedPassOnCuda, GivesTheBitsOfPassesThatAreNot) {
  for (const int ranks : {1, 2, 4})
    run(ranks, [&](const Group& group) {
      std::vector<at::Tensor> losses, expected;
      {
        Training plain(group, false);
        for (int step = 0; step < kCapturedSteps; ++step)
          losses.push_back(plain.step(batch_of(group->rank(), step)));
        expected = plain.state();
      }
      Training captured(group, true);
      int replays = 0;
      for (int step = 0; step < kCapturedSteps; ++step) {
        const auto loss = captured.step(batch_of(group->rank(), step));
        EXPECT_TRUE(loss.equal(losses[static_cast<std::size_t>(step)])) << step;
        replays += captured.replayed() ? 1 : 0;
      }
      const auto found = captured.state();
      for (std::size_t i = 0; i < expected.size(); ++i)
        EXPECT_TRUE(found[i].equal(expected[i])) << i << " of " << ranks;
      // Three passes run before the capture; the last is short.
      EXPECT_EQ(replays, kCapturedSteps - 4);
      EXPECT_EQ(captured.passes(), 5);
    });
}

TEST_F(CapturedPassOnCuda, RefusesGradientsThatItWouldAddTo) {
  run(1, [&](const Group& group) {
    const StreamOfItsOwn stream(gpu_of(*group));
    const at::Tensor weight =
        torch::ones({3}, gpu_of(*group)).requires_grad_(true);
    CapturedPass pass(group, {weight}, [&](at::TensorList inputs) {
      const at::Tensor loss = (weight * inputs[0]).sum();
      loss.backward();
      return std::vector<at::Tensor>{loss.detach()};
    });
    const at::Tensor input = torch::ones({3}, gpu_of(*group));
    for (int i = 0; i < 3; ++i) pass.run({input});
    EXPECT_THAT(error_text<InvalidArgument>([&] { pass.run({input}); }),
                HasSubstr("zero_grad()"));
    weight.mutable_grad() = at::Tensor();
    pass.run({input});
    EXPECT_TRUE(pass.replayed());
    EXPECT_THAT(error_text<InvalidArgument>([&] { pass.run({input}); }),
                HasSubstr("zero_grad()"));
  });
}

TEST_F(CapturedPassOnCuda, CapturesWhatIsLargestOfWhatComesFirst) {
  run(1, [&](const Group& group) {
    const StreamOfItsOwn stream(gpu_of(*group));
    CapturedPass pass(group, {}, [](at::TensorList inputs) {
      return std::vector<at::Tensor>{inputs[0] + 1};
    });
    const at::Tensor small = torch::ones({2}, gpu_of(*group)),
                     large = torch::ones({3}, gpu_of(*group));
    for (int i = 0; i < 2; ++i) pass.run({small});
    for (int i = 0; i < 3; ++i) pass.run({large});
    EXPECT_FALSE(pass.replayed());
    EXPECT_TRUE(pass.run({large})[0].cpu().equal(torch::full({3}, 2.0F)));
    EXPECT_TRUE(pass.replayed());
    EXPECT_TRUE(pass.run({small})[0].cpu().equal(torch::full({2}, 2.0F)));
    EXPECT_FALSE(pass.replayed());
  });
}

TEST_F(CapturedPassOnCuda, CapturesOnTheDeviceOfItsInputs) {
  if (!is_fake()) GTEST_SKIP() << "a machine may have one GPU alone";
  run(1, [&](const Group& group) {
    const c10::Device last(c10::kCUDA, 1);
    const StreamOfItsOwn stream(last);
    CapturedPass pass(group, {}, [](at::TensorList inputs) {
      return std::vector<at::Tensor>{inputs[0] + 1};
    });
    const at::Tensor input = torch::ones({3}, last);
    for (int i = 0; i < 4; ++i)
      EXPECT_TRUE(pass.run({input})[0].cpu().equal(torch::full({3}, 2.0F)));
    EXPECT_TRUE(pass.replayed());
  });
}

TEST_F(CapturedPassOnCuda, RefusesTheDefaultStream) {
  run(1, [&](const Group& group) {
    CapturedPass pass(group, {}, [](at::TensorList inputs) {
      return std::vector<at::Tensor>{inputs[0] + 1};
    });
    const at::Tensor input = torch::ones({3}, gpu_of(*group));
    for (int i = 0; i < 3; ++i) pass.run({input});
    EXPECT_THAT(error_text<InvalidArgument>([&] { pass.run({input}); }),
                HasSubstr("StreamOfItsOwn"));
  });
}

TEST_F(CapturedPassOnCuda, RefusesAPassInWhichTheHostReads) {
  run(1, [&](const Group& group) {
    const StreamOfItsOwn stream(gpu_of(*group));
    CapturedPass pass(group, {}, [](at::TensorList inputs) {
      static_cast<void>(inputs[0].sum().item<float>());
      return std::vector<at::Tensor>{inputs[0] + 1};
    });
    const at::Tensor input = torch::ones({3}, gpu_of(*group));
    for (int i = 0; i < 3; ++i) pass.run({input});
    EXPECT_THAT(error_text<InvalidArgument>([&] { pass.run({input}); }),
                HasSubstr("captured"));
    // The stream and the random number generator still work.
    EXPECT_TRUE((input + 1).cpu().equal(torch::full({3}, 2.0F)));
    EXPECT_EQ(at::dropout(input, 0.5, true).sizes(), input.sizes());
  });
}

TEST_F(CapturedPassOnCuda, RefusesParametersThatHaveMovedSince) {
  run(2, [&](const Group& group) {
    Training captured(group, true);
    for (int step = 0; step < 5; ++step)
      captured.step(batch_of(group->rank(), step));
    EXPECT_TRUE(captured.replayed());
    const at::Tensor weight = captured.parameters().front();
    weight.set_data(weight.detach().clone());
    EXPECT_THAT(error_text([&] { captured.step(batch_of(group->rank(), 5)); }),
                HasSubstr("parameter 0 has moved to other memory"));
  });
}

TEST_F(CapturedPassOnCuda, GivesGradientsTheirMemoryBack) {
  run(2, [&](const Group& group) {
    std::vector<std::vector<at::Tensor>> weights;
    for (const bool captured : {false, true}) {
      Training training(group, captured);
      for (int step = 0; step < 7; ++step) {
        training.step(batch_of(group->rank(), step));
        // As a clipping that runs after the step, and before zero_grad().
        for (const at::Tensor& parameter : training.parameters())
          parameter.mutable_grad().set_data(parameter.grad().clamp(-1, 1));
      }
      weights.push_back(training.state());
    }
    EXPECT_TRUE(std::ranges::equal(
        weights[0], weights[1],
        [](const auto& a, const auto& b) { return a.equal(b); }));
  });
}

}  // namespace
}  // namespace lockstep
