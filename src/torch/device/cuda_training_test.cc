// Tests that training on fake GPUs gives the CPU's results: see
// src/torch/testing/fake_cuda.h.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/cloneable.h>
#include <torch/optim/adamw.h>

#include <functional>
#include <memory>
#include <vector>

#include "lockstep/torch/comm_hooks.h"
#include "lockstep/torch/consistency.h"
#include "lockstep/torch/data_parallel.h"
#include "lockstep/torch/distributed_data_parallel.h"
#include "lockstep/torch/gradient_scaler.h"
#include "lockstep/torch/optimizers.h"
#include "lockstep/torch/sync_batch_norm.h"
#include "lockstep/torch/zero_redundancy_optimizer.h"
#include "src/comm/nccl/gpu_plugin.h"
#include "src/comm/testing/run_ranks.h"
#include "src/torch/testing/cuda_ranks.h"
#include "src/torch/testing/small_nets.h"

namespace lockstep {
namespace {

using torch::optim::AdamOptions;
using torch::optim::AdamWOptions;
using torch::optim::SGDOptions;
using Model = DistributedDataParallel<Net>;
using Tensors = std::vector<at::Tensor>;

constexpr int kRanks = 2, kSteps = 4;

// Trains on one device and returns the learned tensors.
using Learn = std::function<Tensors(const Group&, at::Device)>;

class TrainingOnCuda : public CudaRanks {
 protected:
  void expect_as_on_cpu(const Learn& learn, double tolerance = 1e-5) {
    std::vector<Tensors> expected(kRanks);
    const auto own = [](const Group& group) {
      return static_cast<std::size_t>(group->rank());
    };
    run_ranks(kBackend, kRanks, [&](const Group& group) {
      expected[own(group)] = learn(group, at::kCPU);
    });
    run(kRanks, [&](const Group& group) {
      EXPECT_LE(largest_difference(on_cpu(learn(group, gpu_of(*group))),
                                   expected[own(group)]),
                tolerance);
    });
  }
};

Model model_on(at::Device device,
               const DistributedDataParallelOptions& options) {
  auto net = std::make_shared<Net>();
  net->to(device);
  return Model(net, options);
}

void pass(Model& model, const ProcessGroup& group, at::Device device,
          int step) {
  const Share share = share_on(device, group, step);
  loss_of(model.forward(share.input), share.target).backward();
}

template <class Optimizer>
Tensors train_on(
    at::Device device, const Group& group, Model& model, Optimizer& optimizer,
    const std::function<void()>& before_step = [] {}) {
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    pass(model, *group, device, step);
    before_step();
    optimizer.step();
  }
  return model.parameters();
}

template <class Optimizer, class Options>
Learn with(const Options& options) {
  return [options](const Group& group, at::Device device) {
    Model model = model_on(device, small_buckets(group));
    Optimizer optimizer(model.parameters(), options);
    return train_on(device, group, model, optimizer,
                    [&] { optimizer.clip_grad_norm(0.1); });
  };
}

TEST_F(TrainingOnCuda, UpdatesByFusedOptimizersAndClips) {
  expect_as_on_cpu(with<FusedSGD>(SGDOptions(0.1)));
  expect_as_on_cpu(with<FusedSGD>(
      SGDOptions(0.1).momentum(0.9).dampening(0.3).weight_decay(0.01)));
  expect_as_on_cpu(
      with<FusedSGD>(SGDOptions(0.1).momentum(0.9).nesterov(true)));
  expect_as_on_cpu(with<FusedAdam>(AdamOptions(0.01).weight_decay(0.1)));
  expect_as_on_cpu(with<FusedAdamW>(AdamWOptions(0.01)));
}

TEST_F(TrainingOnCuda, ShardsTheOptimizer) {
  for (const bool averages : {false, true})
    expect_as_on_cpu([&](const Group& group, at::Device device) {
      auto options = small_buckets(group);
      options.average_gradients = !averages;
      Model model = model_on(device, options);
      ZeroRedundancyOptimizer optimizer(
          model.parameters(), AdamWOptions(0.01),
          {.group = group, .averages_gradients = averages});
      return train_on(device, group, model, optimizer,
                      [&] { optimizer.clip_grad_norm(0.1); });
    });
}

TEST_F(TrainingOnCuda, LoadsAShardedOptimizersStateFromTheCpu) {
  expect_as_on_cpu([](const Group& group, at::Device device) {
    Model model = model_on(device, small_buckets(group));
    const auto make = [&] {
      return ZeroRedundancyOptimizer(model.parameters(), AdamWOptions(0.01),
                                     {.group = group});
    };
    auto optimizer = make();
    train_on(device, group, model, optimizer);
    auto again = make();
    FusedAdamW whole(model.parameters(), AdamWOptions(0.01));
    optimizer.consolidate_state_dict(0);
    if (group->rank() == 0) again.load_state_dict(optimizer.state_dict());
    optimizer.consolidate_state_dict(1);
    if (group->rank() == 1) again.load_state_dict(optimizer.state_dict());
    return train_on(device, group, model, again);
  });
}

TEST_F(TrainingOnCuda, ReducesByHooks) {
  const auto by = [](const std::function<std::shared_ptr<CommHook>()>& make) {
    return [make](const Group& group, at::Device device) {
      Model model = model_on(device, {.group = group});
      model.register_comm_hook(make());
      torch::optim::SGD optimizer(model.parameters(), SGDOptions(0.1));
      return train_on(device, group, model, optimizer);
    };
  };
  // Tolerances: the CPU rounds once, NCCL at each rank.
  constexpr double kOfHalf = 1e-4, kOfBFloat16 = 1e-3;
  expect_as_on_cpu(by(fp16_compress_hook), kOfHalf);
  expect_as_on_cpu(by(bf16_compress_hook), kOfBFloat16);
  expect_as_on_cpu(by([] {
    return std::make_shared<PowerSgdHook>(
        PowerSgdOptions{.matrix_approximation_rank = 2, .start_iteration = 2});
  }));
}

TEST_F(TrainingOnCuda, KeepsGradientsInTheirOwnMemoryAndAccumulates) {
  expect_as_on_cpu([](const Group& group, at::Device device) {
    auto options = small_buckets(group);
    options.gradient_as_bucket_view = false;
    Model model = model_on(device, options);
    torch::optim::SGD optimizer(model.parameters(), SGDOptions(0.1));
    for (int step = 0; step < kSteps; ++step) {
      optimizer.zero_grad(/*set_to_none=*/step % 2 == 0);
      {
        const auto local = model.no_sync();
        pass(model, *group, device, 10 + step);
      }
      pass(model, *group, device, step);
      optimizer.step();
    }
    return model.parameters();
  });
}

TEST_F(TrainingOnCuda, SynchronizesBatchNormalization) {
  expect_as_on_cpu([](const Group& group, at::Device device) {
    struct Normalized : torch::nn::Module {
      Normalized() {
        layer = register_module("layer", torch::nn::Linear(6, 3));
        norm =
            register_module("norm", BatchNorm(torch::nn::BatchNormOptions(3)));
        fill(*this, 0);
      }
      at::Tensor forward(const at::Tensor& input) { return norm(layer(input)); }
      torch::nn::Linear layer{nullptr};
      BatchNorm norm{nullptr};
    };
    auto net = std::make_shared<Normalized>();
    net->to(device);
    EXPECT_EQ(convert_sync_batch_norm(*net, group), 1);
    auto model = DistributedDataParallel(net, {.group = group});
    torch::optim::SGD optimizer(model.parameters(), SGDOptions(0.1));
    train(
        model, optimizer,
        [&](int step) { return share_on(device, *group, step); }, kSteps);
    Tensors learned = net->parameters();
    for (const at::Tensor& buffer : net->buffers()) learned.push_back(buffer);
    return learned;
  });
}

TEST_F(TrainingOnCuda, AgreesOnOverflowOfScaledGradients) {
  expect_as_on_cpu([](const Group& group, at::Device device) {
    Model model = model_on(device, small_buckets(group));
    FusedSGD optimizer(model.parameters(), SGDOptions(0.1));
    GradientScaler scaler({.group = group, .init_scale = 1024});
    for (int step = 0; step < kSteps; ++step) {
      optimizer.zero_grad();
      const Share share = share_on(device, *group, step);
      at::Tensor loss = loss_of(model.forward(share.input), share.target);
      // On one rank, in one step.
      if (step == 1 && group->rank() == 1) loss = loss / 0.0;
      scaler.scale(loss).backward();
      EXPECT_EQ(scaler.step(optimizer), step != 1);
      scaler.update();
    }
    EXPECT_EQ(scaler.get_scale(), 512);
    return model.parameters();
  });
}

TEST_F(TrainingOnCuda, ReportsWhatIsTheSameOnRanks) {
  run(kRanks, [](const Group& group) {
    const at::Device device = gpu_of(*group);
    Model model = model_on(device, small_buckets(group));
    torch::optim::SGD optimizer(model.parameters(), SGDOptions(0.1));
    ConsistencyReport report(model.module(), {.group = group, .steps = 1});
    optimizer.zero_grad();
    const Share share = share_on(device, *group, 0);
    report.data(share.input);
    const at::Tensor output = model.forward(share.input);
    report.outputs(output);
    const at::Tensor loss = loss_of(output, share.target);
    report.loss(loss);
    loss.backward();
    report.gradients();
    optimizer.step();
    report.step_done();
    EXPECT_TRUE(report.done());
    EXPECT_TRUE(report.consistent());
  });
}

// One process with all devices.
TEST_F(TrainingOnCuda, DividesABatchOverDevices) {
  if (!is_fake() && gpu_status({}).devices < 2)
    GTEST_SKIP() << "there is one GPU";
  const std::vector<at::Device> devices{{at::kCUDA, 0}, {at::kCUDA, 1}};
  const Share batch = share_of_batch(0, 0, 1, 3);
  auto net = std::make_shared<Net>();
  net->to(devices[0]);
  auto model = data_parallel::DataParallel(
      net,
      {.devices = devices, .factory = [] { return std::make_shared<Net>(); }});
  const at::Tensor output = model(batch.input.to(devices[0]));
  loss_of(output, batch.target.to(devices[0])).backward();
  EXPECT_LE(largest_difference(on_cpu(gradients_of(*net)),
                               gradients_of_one_process(3)),
            kTolerance);
  EXPECT_GT(model.memory()[1].replica_bytes, 0);
}

TEST_F(TrainingOnCuda, JoinsOutputsWhereItIsTold) {
  if (!is_fake() && gpu_status({}).devices < 2)
    GTEST_SKIP() << "there is one GPU";
  const std::vector<at::Device> devices{{at::kCUDA, 0}, {at::kCUDA, 1}};
  const Share batch = share_of_batch(0, 0, 1, 3);
  for (const at::Device place : {devices[1], at::Device(at::kCPU)}) {
    auto net = std::make_shared<Net>();
    net->to(devices[0]);
    auto model = data_parallel::DataParallel(
        net, {.devices = devices, .output_device = place, .factory = [] {
                return std::make_shared<Net>();
              }});
    const at::Tensor output = model(batch.input.to(devices[0]));
    EXPECT_EQ(output.device(), place);
    loss_of(output, batch.target.to(place)).backward();
    EXPECT_LE(largest_difference(on_cpu(gradients_of(*net)),
                                 gradients_of_one_process(3)),
              kTolerance);
  }
}

TEST_F(TrainingOnCuda, ReplicasOfAModuleSeeWhatAFusedOptimizerWrites) {
  run_process(2, [](const Group&) {
    const auto rule = SGDOptions(0.1).momentum(0.9);
    const auto batch = [](int step) { return share_of_batch(step, 0, 1, 2); };
    Net alone;
    torch::optim::SGD optimizer_of_one(alone.parameters(), rule);
    train(alone, optimizer_of_one, batch, kSteps);
    const std::vector<at::Device> devices{{at::kCUDA, 0}, {at::kCUDA, 1}};
    auto model = data_parallel::DataParallel(
        std::make_shared<Net>(), {.devices = devices, .factory = [] {
                                    return std::make_shared<Net>();
                                  }});
    FusedSGD optimizer(model.parameters(), rule);
    train(
        model, optimizer,
        [&](int step) {
          const auto [input, target] = batch(step);
          return Share{input.to(devices[0]), target.to(devices[0])};
        },
        kSteps);
    EXPECT_LE(
        largest_difference(on_cpu(model.parameters()), alone.parameters()),
        1e-5);
  });
}

}  // namespace
}  // namespace lockstep
