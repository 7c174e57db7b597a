#include "benchmarks/step_job.h"

#include <ATen/ATen.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <utility>
#include <vector>

#include "apps/trainer/model/models.h"
#include "benchmarks/causal_transformer.h"
#include "lockstep/torch/distributed_data_parallel.h"
#include "lockstep/torch/optimizers.h"
#include "lockstep/torch/zero_redundancy_optimizer.h"

namespace lockstep {
namespace {

constexpr std::uint64_t kSeed = 1234;
constexpr std::int64_t kClasses = 10;
constexpr double kMaxNorm = 1;

bool is_transformer(const StepJob& job) { return job.model == "transformer"; }

std::int64_t batch_of(const StepJob& job) {
  return (is_transformer(job) ? 16 : 64) * job.threads;
}

ModelOptions model_options(const StepJob& job, int rank) {
  ModelOptions options;
  if (job.model == "resnet18")
    options = {.channels = 3, .height = 32, .width = 32};
  options.classes = kClasses;
  options.hidden = {4096, 4096};
  options.seed = kSeed;
  options.dropout_seed = kSeed + static_cast<std::uint64_t>(rank);
  if (job.deterministic) options.dropout = 0;
  return options;
}

template <class Module>
StepModel as_job_says(const StepJob& job, std::shared_ptr<Module> module) {
  if (job.way == StepWay::kLibTorch)
    return {module,
            [module](const at::Tensor& x) { return module->forward(x); }};
  const auto replica = std::make_shared<DistributedDataParallel<Module>>(
      module, DistributedDataParallelOptions{.average_gradients =
                                                 job.way == StepWay::kDdp});
  return {module,
          [replica](const at::Tensor& x) { return replica->forward(x); }};
}

// Ours clip as part of the update, LibTorch's are clipped before it.
template <class Optimizer>
StepUpdate update_by(std::unique_ptr<Optimizer> optimizer, const StepJob& job,
                     std::vector<at::Tensor> parameters) {
  StepUpdate update;
  if (is_transformer(job))
    update.clip = [own = optimizer.get(), parameters = std::move(parameters)] {
      if constexpr (requires { own->clip_grad_norm(kMaxNorm); })
        return own->clip_grad_norm(kMaxNorm);
      else
        return torch::nn::utils::clip_grad_norm_(parameters, kMaxNorm);
    };
  update.optimizer = std::move(optimizer);
  return update;
}

template <class LibTorchs, class Ours, class Rule>
StepUpdate update_with(const Rule& rule, const StepJob& job,
                       const std::vector<at::Tensor>& parameters) {
  if (job.way == StepWay::kSharded)
    return update_by(
        std::make_unique<ZeroRedundancyOptimizer>(
            parameters, rule,
            ZeroRedundancyOptimizerOptions{.averages_gradients = true}),
        job, parameters);
  if (job.way == StepWay::kDdp && job.model != "cnn" && job.model != "mlp")
    return update_by(std::make_unique<Ours>(parameters, rule), job, parameters);
  return update_by(std::make_unique<LibTorchs>(parameters, rule), job,
                   parameters);
}

}  // namespace

StepModel make_step_model(const StepJob& job, int rank) {
  if (!is_transformer(job))
    return as_job_says(job, make_model(job.model, model_options(job, rank)));
  torch::manual_seed(kSeed);
  return as_job_says(job, std::make_shared<CausalTransformer>());
}

StepBatch make_step_batch(const StepJob& job, int rank) {
  // As PyTorch's loop, but for its wrapper: the same numbers everywhere.
  torch::manual_seed(kSeed + static_cast<std::uint64_t>(rank));
  const std::int64_t batch = batch_of(job);
  if (is_transformer(job)) {
    const CausalTransformerOptions shape;
    const at::Tensor text = torch::randint(
        0, shape.vocabulary, {batch, shape.length + 1}, torch::kLong);
    return {text.narrow(1, 0, shape.length).contiguous(),
            text.narrow(1, 1, shape.length).flatten()};
  }
  const ModelOptions shape = model_options(job, rank);
  const at::Tensor images =
      torch::randn({batch, shape.channels, shape.height, shape.width});
  return {images, torch::randint(0, kClasses, {batch}, torch::kLong)};
}

StepUpdate make_step_update(const StepJob& job, torch::nn::Module& module) {
  const auto parameters = module.parameters();
  if (is_transformer(job))
    return update_with<torch::optim::AdamW, FusedAdamW>(
        torch::optim::AdamWOptions(3e-4).weight_decay(0.1), job, parameters);
  return update_with<torch::optim::SGD, FusedSGD>(
      torch::optim::SGDOptions(0.01).momentum(0.5), job, parameters);
}

}  // namespace lockstep
