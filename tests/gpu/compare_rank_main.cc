// One rank that trains under DistributedDataParallel, for comparison with
// PyTorch's in scripts/gpu/compare.py:
//
//   lockstep_compare_rank cpu|cuda MODEL float32|bfloat16 STEPS FOLDER
//
// FOLDER holds weights.safetensors and data.safetensors: `images`, of batches x
// ranks x samples x channels x height x width, and their `labels`. A step takes
// the next batch and starts again after the last one. Rank 0 writes there
// gradients_1.safetensors and gradients_3.safetensors, the averages of those
// steps, losses.safetensors, its losses, and parameters.safetensors, the
// model's parameters after the last step.
//
// Float32 products are not rounded to TF32, kernels are deterministic, and
// dropout drops nothing.
#include <ATen/Context.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/nn/functional/loss.h>

#include <algorithm>
#include <array>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "apps/trainer/loop/training_device.h"
#include "apps/trainer/model/models.h"
#include "apps/trainer/model/precision.h"
#include "lockstep/checkpoint/checkpoint.h"
#include "lockstep/comm/groups.h"
#include "lockstep/torch/distributed_data_parallel.h"
#include "lockstep/torch/optimizers.h"
#include "src/checkpoint/tensor_archive.h"

namespace lockstep {
namespace {

// The same numbers stand in scripts/gpu/compare.py.
constexpr std::array kStepsOfGradients{1, 3};
constexpr double kMomentum = 0.9;
constexpr std::int64_t kClasses = 10;

struct Job {
  std::string device, model;
  Precision precision = Precision::kFloat32;
  int steps = 0;
  std::string folder;
};

struct Data {
  at::Tensor images, labels;
};

// Ranks that share GPUs use their rank modulo the number of GPUs.
at::Device device_of(const std::string& kind, int rank) {
  const at::Device first = training_device(kind);
  if (first.is_cpu()) return first;
  const int count = c10::impl::VirtualGuardImpl(first.type()).deviceCount();
  return {first.type(), static_cast<at::DeviceIndex>(rank % count)};
}

Data read_data(const std::string& folder, int rank, at::Device device) {
  const std::string file = folder + "/data.safetensors";
  const NamedTensors all = parse_archive(read_bytes(file), file).tensors;
  const auto mine = [&](const char* name) {
    return all.at(name).select(1, rank).contiguous().to(device);
  };
  return {mine("images"), mine("labels")};
}

std::shared_ptr<Classifier> make_classifier(const Job& job, const Data& data) {
  auto model = make_model(job.model, {.channels = data.images.size(2),
                                      .height = data.images.size(3),
                                      .width = data.images.size(4),
                                      .classes = kClasses,
                                      .dropout = 0});
  load_checkpoint(job.folder + "/weights.safetensors", *model);
  model->to(data.images.device());
  return model;
}

// Small when rounding errors grow fast.
double rate_of(const Job& job) {
  return job.model == "resnet18" ? 0.001 : 0.01;
}

void save_gradients(const Classifier& model, const std::string& file) {
  NamedTensors gradients;
  for (const auto& parameter : model.named_parameters())
    gradients.emplace(parameter.key(), parameter->grad());
  write_archive(file, {.tensors = std::move(gradients)});
}

void train(const Job& job) {
  const int rank = default_group()->rank();
  const c10::DeviceGuard guard(device_of(job.device, rank));
  const Data data = read_data(job.folder, rank, device_of(job.device, rank));
  const auto model = make_classifier(job, data);
  DistributedDataParallel replica(model);
  FusedSGD optimizer(
      model->parameters(),
      torch::optim::SGDOptions(rate_of(job)).momentum(kMomentum));
  NamedTensors losses;
  for (int step = 1; step <= job.steps; ++step) {
    const std::int64_t batch = (step - 1) % data.images.size(0);
    optimizer.zero_grad();
    at::Tensor loss;
    {
      const MixedPrecision mixed(job.precision, data.images.device().type());
      loss = torch::nn::functional::cross_entropy(replica(data.images[batch]),
                                                  data.labels[batch]);
    }
    loss.backward();
    if (std::ranges::count(kStepsOfGradients, step) > 0 && rank == 0) {
      losses.emplace(std::to_string(step), loss.detach().to(at::kFloat).cpu());
      save_gradients(*model, job.folder + "/gradients_" + std::to_string(step) +
                                 ".safetensors");
    }
    optimizer.step();
    if (step == job.steps && rank == 0)
      std::cout << "loss " << loss.item<double>() << std::endl;
  }
  if (rank != 0) return;
  write_archive(job.folder + "/losses.safetensors",
                {.tensors = std::move(losses)});
  save_checkpoint(job.folder + "/parameters.safetensors", *model);
}

void run(const Job& job) {
  at::globalContext().setAllowTF32CuBLAS(false);
  at::globalContext().setAllowTF32CuDNN(false);
  use_deterministic_kernels();
  init_process_group();
  train(job);
  destroy_process_group();
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  if (arguments.size() != 5) {
    std::cerr << "usage: lockstep_compare_rank cpu|cuda MODEL "
                 "float32|bfloat16 STEPS FOLDER\n";
    return 2;
  }
  try {
    lockstep::run({.device = arguments[0],
                   .model = arguments[1],
                   .precision = lockstep::parse_precision(arguments[2]),
                   .steps = std::stoi(arguments[3]),
                   .folder = arguments[4]});
    return 0;
  } catch (const std::exception& error) {
    std::cerr << error.what() << std::endl;
    return 1;
  }
}
