// Trains a small network with SyncBatchNorm, once for each job.
//
//   lockstep_sync_batch_norm_golden RANKS DIRECTORY JOB…
//
// sync_batch_norm_golden.py writes inputs.f32, targets.f32 and weights.f32 to
// DIRECTORY and lists the jobs; weights and running statistics at the end go to
// JOB.f32.
#include <torch/torch.h>

#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "lockstep/torch/distributed_data_parallel.h"
#include "lockstep/torch/sync_batch_norm.h"
#include "src/comm/testing/run_ranks.h"
#include "src/torch/testing/flat_parameters.h"
#include "src/torch/testing/tensor_file.h"
#include "tests/golden/golden_main.h"

namespace lockstep {
namespace {

// The same numbers stand in sync_batch_norm_golden.py.
constexpr int kSteps = 20;
constexpr std::int64_t kBatch = 12;
constexpr std::int64_t kSide = 6;
constexpr std::int64_t kFeatures = 4;
constexpr std::int64_t kOutputs = 5;
constexpr double kLearningRate = 0.05;
constexpr double kMomentum = 0.9;

std::shared_ptr<torch::nn::SequentialImpl> make_model(const std::string& job) {
  torch::nn::BatchNormOptions options(kFeatures);
  if (job == "cumulative") options.momentum(std::nullopt);
  return torch::nn::Sequential(
             torch::nn::Conv2d(3, kFeatures, 3),
             torch::nn::BatchNorm2d(options), torch::nn::ReLU(),
             torch::nn::Flatten(),
             torch::nn::Linear(kFeatures * (kSide - 2) * (kSide - 2), kOutputs))
      .ptr();
}

// Where rank `rank`'s samples begin.
std::int64_t begin_of(const std::string& job, int rank, int ranks) {
  if (job == "uneven")
    return kBatch * rank * (rank + 1) / (ranks * (ranks + 1));
  return kBatch * rank / ranks;
}

at::Tensor train(const std::string& job, const std::string& directory,
                 const std::shared_ptr<ProcessGroup>& group) {
  const at::Tensor inputs =
      read_tensor(directory + "/inputs.f32", {kSteps, kBatch, 3, kSide, kSide});
  const at::Tensor targets =
      read_tensor(directory + "/targets.f32", {kSteps, kBatch, kOutputs});
  const auto net = make_model(job);
  convert_sync_batch_norm(*net, group);
  set_flat_parameters(*net, read_tensor(directory + "/weights.f32",
                                        {flat_parameters(*net).numel()}));
  DistributedDataParallel<torch::nn::SequentialImpl> model(
      net, {.group = group, .broadcast_buffers = false});
  torch::optim::SGD optimizer(
      model.parameters(),
      torch::optim::SGDOptions(kLearningRate).momentum(kMomentum));
  const int rank = group->rank();
  const int ranks = group->size();
  const std::int64_t begin = begin_of(job, rank, ranks);
  const std::int64_t count = begin_of(job, rank + 1, ranks) - begin;
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    const at::Tensor error = model(inputs[step].narrow(0, begin, count)) -
                             targets[step].narrow(0, begin, count);
    // The mean over the whole batch after averaging the ranks' gradients.
    (error.square().sum() *
     (static_cast<double>(ranks) / static_cast<double>(kBatch * kOutputs)))
        .backward();
    optimizer.step();
  }
  const auto buffers = net->named_buffers();
  return torch::cat({flat_parameters(*net), buffers["1.running_mean"],
                     buffers["1.running_var"]});
}

void run_job(const std::string& job, int ranks, const std::string& directory) {
  std::vector<at::Tensor> results(static_cast<std::size_t>(ranks));
  run_ranks("shm", ranks, [&](const std::shared_ptr<ProcessGroup>& group) {
    results[static_cast<std::size_t>(group->rank())] =
        train(job, directory, group);
  });
  for (const at::Tensor& result : results)
    if (!result.equal(results[0]))
      throw std::runtime_error("ranks differ in " + job);
  write_tensor(directory + "/" + job + ".f32", results[0]);
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  return lockstep::golden_main(argc, argv, lockstep::run_job);
}
