// Trains a few weights under a GradientScaler, once for each job.
//
//   lockstep_scaler_golden RANKS DIRECTORY JOB…
//
// scaler_golden.py writes factors.f32 to DIRECTORY and lists the jobs; scales,
// growth trackers, whether each step was made, and the weights at the end go to
// JOB.f32.
#include <torch/torch.h>

#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "lockstep/torch/distributed_data_parallel.h"
#include "lockstep/torch/gradient_scaler.h"
#include "lockstep/torch/optimizers.h"
#include "lockstep/torch/zero_redundancy_optimizer.h"
#include "src/comm/testing/run_ranks.h"
#include "src/torch/testing/tensor_file.h"
#include "tests/golden/golden_main.h"

namespace lockstep {
namespace {

// The same numbers stand in scaler_golden.py.
constexpr int kSteps = 80;
constexpr int kRanks = 3;
constexpr int kSize = 20;
constexpr double kMaxNorm = 0.5;
constexpr double kLearningRate = 0.1;
constexpr double kMomentum = 0.9;

struct Weights : torch::nn::Module {
  // In float16, like under autocast.
  at::Tensor forward(const at::Tensor& factors) {
    return (weights.to(torch::kHalf) * factors.to(torch::kHalf)).sum();
  }
  at::Tensor weights = register_parameter("weights", torch::ones({kSize}));
};

struct Stepper {
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  std::function<void()> clip;
};

template <class Optimizer>
void clip(Optimizer& optimizer, const std::vector<at::Tensor>& /*parameters*/) {
  optimizer.clip_grad_norm(kMaxNorm);
}
void clip(torch::optim::SGD& /*optimizer*/,
          const std::vector<at::Tensor>& parameters) {
  clip_grad_norm(parameters, kMaxNorm);
}

template <class Optimizer, class... Options>
Stepper make(const std::vector<at::Tensor>& parameters,
             const Options&... options) {
  auto optimizer = std::make_unique<Optimizer>(
      parameters, torch::optim::SGDOptions(kLearningRate).momentum(kMomentum),
      options...);
  Optimizer& alias = *optimizer;
  return {std::move(optimizer),
          [&alias, parameters] { clip(alias, parameters); }};
}

Stepper stepper_of(const std::string& job,
                   const std::vector<at::Tensor>& parameters,
                   const std::shared_ptr<ProcessGroup>& group) {
  if (job.find("sharded") != std::string::npos)
    return make<ZeroRedundancyOptimizer>(
        parameters, ZeroRedundancyOptimizerOptions{.group = group,
                                                   .averages_gradients = true});
  if (job.find("fused") != std::string::npos) return make<FusedSGD>(parameters);
  return make<torch::optim::SGD>(parameters);
}

GradientScalerOptions scaler_options(const std::string& job,
                                     std::shared_ptr<ProcessGroup> group) {
  if (job.starts_with("usual"))
    return {.group = std::move(group), .growth_interval = 5};
  return {.group = std::move(group),
          .init_scale = 3000,
          .growth_factor = 1.7,
          .backoff_factor = 0.3,
          .growth_interval = 2};
}

// One rank's `factors`, by step.
std::vector<float> train(const std::string& job, const at::Tensor& factors,
                         const std::shared_ptr<ProcessGroup>& group) {
  const bool sharded = job.find("sharded") != std::string::npos;
  DistributedDataParallel<Weights> model(
      std::make_shared<Weights>(),
      {.group = group, .average_gradients = !sharded});
  const Stepper stepper = stepper_of(job, model.parameters(), group);
  GradientScaler scaler(scaler_options(job, group));
  std::vector<float> record;
  for (int step = 0; step < kSteps; ++step) {
    stepper.optimizer->zero_grad();
    scaler.scale(model(factors[step])).backward();
    if (job.ends_with("clipped")) {
      scaler.unscale_(*stepper.optimizer);
      stepper.clip();
    }
    const bool made = scaler.step(*stepper.optimizer);
    scaler.update();
    const GradientScaler::State& state = scaler.state_dict();
    record.push_back(static_cast<float>(state.scale));
    record.push_back(static_cast<float>(state.growth_tracker));
    record.push_back(made ? 1 : 0);
  }
  const at::Tensor weights = model.module()->weights.detach().clone();
  const auto* begin = weights.const_data_ptr<float>();
  record.insert(record.end(), begin, begin + kSize);
  return record;
}

// Every rank's record must be the same.
void run_job(const std::string& job, int ranks, const std::string& directory) {
  const at::Tensor factors =
      read_tensor(directory + "/factors.f32", {kSteps, kRanks, kSize});
  std::vector<std::vector<float>> records(static_cast<std::size_t>(ranks));
  run_ranks("shm", ranks, [&](const std::shared_ptr<ProcessGroup>& group) {
    records[static_cast<std::size_t>(group->rank())] =
        train(job, factors.select(1, group->rank()), group);
  });
  for (const auto& record : records)
    if (record != records[0])
      throw std::runtime_error("ranks differ in " + job);
  write_tensor(directory + "/" + job + ".f32", torch::tensor(records[0]));
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  return lockstep::golden_main(argc, argv, lockstep::run_job);
}
