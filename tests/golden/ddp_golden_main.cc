// Trains a model for 50 steps in one process, and on several ranks that take
// equal shares of the same batches, and compares the weights.
//
//   lockstep_ddp_golden MODEL RANKS OPTIMIZER [DIRECTORY]
//
// OPTIMIZER is sgd, or zero: AdamW with clipped gradients, which the ranks keep
// in shards and the one process whole.
//
// In DIRECTORY lie weights.f32, images.f32 and labels.i64, as ddp_golden.py
// writes them; the ranks' weights go to weights_of_RANKS_ranks.f32 there.
// Without it, weights and data come from a seed. Prints the largest difference;
// exit code 1 when it is above 1e-5.
#include <torch/torch.h>

#include <cstdio>
#include <exception>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "lockstep/comm/testing/run_ranks.h"
#include "lockstep/torch/clip_gradients.h"
#include "lockstep/torch/distributed_data_parallel.h"
#include "lockstep/torch/zero_redundancy_optimizer.h"
#include "lockstep/train/models.h"

namespace lockstep {
namespace {

// The same numbers stand in ddp_golden.py.
constexpr int kSteps = 50;
constexpr std::int64_t kBatch = 32;
constexpr std::int64_t kSamples = kSteps * kBatch;
constexpr double kLearningRate = 0.05;
constexpr double kMomentum = 0.5;
constexpr double kZeroLearningRate = 0.001;
constexpr double kZeroEps = 1e-4;
constexpr double kMaxNorm = 1;

constexpr double kTolerance = 1e-5;
constexpr int kSeed = 1;

at::Tensor read_file(const std::string& path, at::IntArrayRef sizes,
                     at::ScalarType type) {
  at::Tensor tensor = torch::empty(sizes, type);
  std::ifstream file(path, std::ios::binary);
  const auto bytes = static_cast<std::streamsize>(tensor.nbytes());
  file.read(static_cast<char*>(tensor.data_ptr()), bytes);
  if (file.gcount() != bytes)
    throw std::runtime_error(path + " has fewer than " + std::to_string(bytes) +
                             " bytes");
  return tensor;
}

struct Job {
  std::string model;
  std::string optimizer;
  at::Tensor weights;  // of all parameters, one after another
  at::Tensor images, labels;
};

std::shared_ptr<Classifier> new_model(const std::string& name) {
  return make_model(name, {.dropout = 0, .seed = kSeed});
}

at::Tensor flat_weights(const torch::nn::Module& model) {
  std::vector<at::Tensor> flat;
  for (const at::Tensor& parameter : model.parameters())
    flat.push_back(parameter.detach().flatten());
  return torch::cat(flat);
}

void set_weights(const torch::nn::Module& model, const at::Tensor& flat) {
  const torch::NoGradGuard no_grad;
  std::int64_t at = 0;
  for (at::Tensor& parameter : model.parameters()) {
    parameter.copy_(
        flat.narrow(0, at, parameter.numel()).view(parameter.sizes()));
    at += parameter.numel();
  }
}

Job seeded_job(const std::string& model, const std::string& optimizer) {
  torch::manual_seed(kSeed);
  return {model, optimizer, flat_weights(*new_model(model)),
          torch::randn({kSamples, 1, 28, 28}),
          torch::randint(10, {kSamples}, at::kLong)};
}

Job read_job(const std::string& model, const std::string& optimizer,
             const std::string& directory) {
  const auto count = parameter_count(*new_model(model));
  return {
      model, optimizer,
      read_file(directory + "/weights.f32", {count}, at::kFloat),
      read_file(directory + "/images.f32", {kSamples, 1, 28, 28}, at::kFloat),
      read_file(directory + "/labels.i64", {kSamples}, at::kLong)};
}

using Group = std::shared_ptr<ProcessGroup>;

// For the ranks of `group`, or for one process that has none.
std::unique_ptr<torch::optim::Optimizer> make_optimizer(
    const Job& job, const torch::nn::Module& module, const Group& group) {
  const auto adamw =
      torch::optim::AdamWOptions(kZeroLearningRate).eps(kZeroEps);
  if (job.optimizer == "sgd")
    return std::make_unique<torch::optim::SGD>(
        module.parameters(),
        torch::optim::SGDOptions(kLearningRate).momentum(kMomentum));
  if (job.optimizer != "zero")
    throw std::invalid_argument("there is no optimizer " + job.optimizer);
  if (!group)
    return std::make_unique<torch::optim::AdamW>(module.parameters(), adamw);
  return std::make_unique<ZeroRedundancyOptimizer>(
      module.parameters(), adamw,
      ZeroRedundancyOptimizerOptions{.group = group});
}

void make_step(const Job& job, torch::optim::Optimizer& optimizer) {
  auto* sharded = dynamic_cast<ZeroRedundancyOptimizer*>(&optimizer);
  if (sharded != nullptr)
    sharded->clip_grad_norm(kMaxNorm);
  else if (job.optimizer == "zero")
    clip_grad_norm(optimizer.param_groups()[0].params(), kMaxNorm);
  optimizer.step();
}

// `forward` is the module's, or that of the wrapper around it.
template <class Forward>
at::Tensor train(const Job& job, const torch::nn::Module& module,
                 const Forward& forward, const Group& group) {
  const auto optimizer = make_optimizer(job, module, group);
  const std::int64_t share = kBatch / (group ? group->size() : 1);
  const std::int64_t own = group ? group->rank() * share : 0;
  for (int step = 0; step < kSteps; ++step) {
    const std::int64_t first = step * kBatch + own;
    optimizer->zero_grad();
    torch::cross_entropy_loss(forward(job.images.narrow(0, first, share)),
                              job.labels.narrow(0, first, share))
        .backward();
    make_step(job, *optimizer);
  }
  return flat_weights(module);
}

at::Tensor weights_of_one_process(const Job& job) {
  const auto model = new_model(job.model);
  set_weights(*model, job.weights);
  const auto forward = [&](const at::Tensor& x) { return model->forward(x); };
  return train(job, *model, forward, nullptr);
}

at::Tensor weights_of_ranks(const Job& job, int ranks) {
  at::Tensor result;
  run_ranks("shm", ranks, [&](const Group& group) {
    const auto model = new_model(job.model);
    if (group->rank() == 0) set_weights(*model, job.weights);
    auto replica = DistributedDataParallel(
        model, {.group = group, .first_bucket_bytes = std::size_t{1} << 14});
    const auto forward = [&](const at::Tensor& x) { return replica(x); };
    const at::Tensor weights = train(job, *model, forward, group);
    if (group->rank() == 0) result = weights;
  });
  return result;
}

int compare(int argc, char** argv) {
  if (argc < 4 || argc > 5) {
    std::fprintf(stderr, "usage: %s MODEL RANKS OPTIMIZER [DIRECTORY]\n",
                 argv[0]);
    return 2;
  }
  torch::set_num_threads(1);
  const std::string model = argv[1];
  const int ranks = std::stoi(argv[2]);
  const Job job = argc == 5 ? read_job(model, argv[3], argv[4])
                            : seeded_job(model, argv[3]);
  const at::Tensor one = weights_of_one_process(job);
  const at::Tensor many = weights_of_ranks(job, ranks);
  if (argc == 5)
    std::ofstream(
        std::string(argv[4]) + "/weights_of_" + argv[2] + "_ranks.f32",
        std::ios::binary)
        .write(static_cast<const char*>(many.const_data_ptr()),
               static_cast<std::streamsize>(many.nbytes()));

  const double difference = (one - many).abs().max().item<double>();
  const double moved = (one - job.weights).abs().max().item<double>();
  std::printf(
      "%s, %s: weights of %d ranks differ from one process's by at most %.2g; "
      "training moved them by %.2g\n",
      model.c_str(), argv[3], ranks, difference, moved);
  return difference <= kTolerance && moved > 0.01 ? 0 : 1;
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  try {
    return lockstep::compare(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
