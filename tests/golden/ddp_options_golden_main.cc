// Trains a small network under DistributedDataParallel, once for each job.
//
//   lockstep_ddp_options_golden RANKS DIRECTORY JOB…
//
// ddp_options_golden.py writes weights.f32, inputs.f32 and targets.f32 to
// DIRECTORY and says what the jobs are; rank 0's parameters and running
// statistics go to JOB.f32.
#include <torch/torch.h>

#include <cstdio>
#include <exception>
#include <fstream>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "lockstep/comm/testing/run_ranks.h"
#include "lockstep/torch/distributed_data_parallel.h"

namespace lockstep {
namespace {

// The same numbers and jobs stand in ddp_options_golden.py.
constexpr int kSteps = 12;
constexpr int kRanks = 4;
constexpr int kParts = 3;
constexpr int kSamples = 5;
constexpr double kLearningRate = 0.1;
constexpr double kMomentum = 0.9;

struct Net : torch::nn::Module {
  // `path` names the layers between trunk and head.
  at::Tensor forward(const at::Tensor& input, const std::string& path) {
    at::Tensor x = torch::tanh(norm(trunk(input)));
    for (const char letter : path)
      x = torch::tanh(letter == 'l' ? left(x) : right(x));
    return head(x);
  }
  template <class Layer>
  Layer add(const char* name, Layer layer) {
    return register_module(name, layer);
  }
  torch::nn::Linear trunk = add("trunk", torch::nn::Linear(6, 8));
  torch::nn::BatchNorm1d norm = add("norm", torch::nn::BatchNorm1d(8));
  torch::nn::Linear left = add("left", torch::nn::Linear(8, 8));
  torch::nn::Linear right = add("right", torch::nn::Linear(8, 8));
  torch::nn::Linear head = add("head", torch::nn::Linear(8, 3));
};

at::Tensor read_file(const std::string& path, at::IntArrayRef sizes) {
  at::Tensor tensor = torch::empty(sizes);
  std::ifstream file(path, std::ios::binary);
  const auto bytes = static_cast<std::streamsize>(tensor.nbytes());
  file.read(static_cast<char*>(tensor.data_ptr()), bytes);
  if (file.gcount() != bytes)
    throw std::runtime_error(path + " has fewer than " + std::to_string(bytes) +
                             " bytes");
  return tensor;
}

void set_weights(const torch::nn::Module& module, const at::Tensor& flat) {
  const torch::NoGradGuard no_grad;
  std::int64_t at = 0;
  for (at::Tensor& parameter : module.parameters()) {
    parameter.copy_(
        flat.narrow(0, at, parameter.numel()).view(parameter.sizes()));
    at += parameter.numel();
  }
}

at::Tensor state_of(const Net& net) {
  std::vector<at::Tensor> flat;
  for (const at::Tensor& parameter : net.parameters())
    flat.push_back(parameter.detach().flatten());
  flat.push_back(net.norm->running_mean);
  flat.push_back(net.norm->running_var);
  return torch::cat(flat);
}

struct Data {
  at::Tensor weights, inputs, targets;
};

Data read_data(const std::string& directory) {
  std::int64_t count = 0;
  for (const at::Tensor& parameter : Net().parameters())
    count += parameter.numel();
  return {read_file(directory + "/weights.f32", {count}),
          read_file(directory + "/inputs.f32",
                    {kSteps, kRanks, kParts, kSamples, 6}),
          read_file(directory + "/targets.f32",
                    {kSteps, kRanks, kParts, kSamples, 3})};
}

DistributedDataParallelOptions options_of(const std::string& job,
                                          std::shared_ptr<ProcessGroup> group) {
  DistributedDataParallelOptions options{.group = std::move(group)};
  const auto is_one_of = [&](std::initializer_list<const char*> names) {
    return std::ranges::find(names, job) != names.end();
  };
  if (is_one_of({"plain", "own_gradients", "accumulate", "unused", "static"})) {
    options.first_bucket_bytes = 200;
    options.bucket_bytes = 200;
  }
  options.broadcast_buffers = job != "no_broadcast";
  options.find_unused_parameters = job.find("unused") != std::string::npos;
  options.static_graph = job == "static";
  options.gradient_as_bucket_view = job != "own_gradients";
  return options;
}

// See Job.momentum in ddp_options_golden.py.
double momentum_of(const std::string& job) {
  return job == "join_unused" ? 0 : kMomentum;
}

// One rank's training by one job.
class Training {
 public:
  Training(std::string job, const Data& data,
           const std::shared_ptr<ProcessGroup>& group)
      : job_(std::move(job)),
        data_(data),
        rank_(group->rank()),
        net_(new_net()),
        model_(net_, options_of(job_, group)),
        optimizer_(net_->parameters(), torch::optim::SGDOptions(kLearningRate)
                                           .momentum(momentum_of(job_))) {}

  at::Tensor run() {
    if (job_.starts_with("join")) {
      const auto scope = model_.join(
          {.divide_by_initial_world_size = job_ != "join_by_active"});
      run_steps(5 + 2 * rank_);
    } else {
      run_steps(kSteps);
    }
    return state_of(*net_);
  }

 private:
  std::shared_ptr<Net> new_net() const {
    auto net = std::make_shared<Net>();
    if (rank_ == 0) set_weights(*net, data_.weights);
    if (job_ == "frozen")
      for (at::Tensor& parameter : net->left->parameters())
        parameter.requires_grad_(false);
    return net;
  }

  void run_steps(int steps) {
    for (int step = 0; step < steps; ++step) {
      optimizer_.zero_grad();
      backward(step);
      optimizer_.step();
    }
  }

  at::Tensor loss(int step, int part, const std::string& path = "lr") {
    const auto mine = [&](const at::Tensor& all) {
      return all[step][rank_][part];
    };
    return torch::mse_loss(model_(mine(data_.inputs), path),
                           mine(data_.targets));
  }

  std::string path(int step) const {
    const char* paths[] = {"l", "r", "lr", ""};
    return paths[step * (rank_ + 1) % 4];
  }

  void backward(int step) {
    if (job_ == "accumulate") {
      {
        const auto guard = model_.no_sync();
        loss(step, 0).backward();
        loss(step, 1).backward();
      }
      loss(step, 2).backward();
    } else if (job_ == "forward_inside") {
      std::optional<at::Tensor> inside;
      {
        const auto guard = model_.no_sync();
        inside = loss(step, 0);
      }
      inside->backward();
      loss(step, 1).backward();
    } else if (job_ == "two_forwards") {
      const at::Tensor first = loss(step, 0);
      (first + loss(step, 1)).backward();
    } else if (job_ == "unused_accumulate") {
      {
        const auto guard = model_.no_sync();
        loss(step, 0, path(step + 1)).backward();
      }
      loss(step, 1, path(step)).backward();
    } else if (job_ == "unused" || job_ == "join_unused") {
      loss(step, 0, path(step)).backward();
    } else if (job_ == "static") {
      loss(step, 0, "ll").backward();
    } else {
      loss(step, 0).backward();
    }
  }

  std::string job_;
  const Data& data_;
  int rank_;
  std::shared_ptr<Net> net_;
  DistributedDataParallel<Net> model_;
  torch::optim::SGD optimizer_;
};

void run_job(const std::string& job, int ranks, const std::string& directory) {
  const Data data = read_data(directory);
  at::Tensor result;
  run_ranks("shm", ranks, [&](const std::shared_ptr<ProcessGroup>& group) {
    const at::Tensor state = Training(job, data, group).run();
    if (group->rank() == 0) result = state;
  });
  std::ofstream file(directory + "/" + job + ".f32", std::ios::binary);
  file.write(static_cast<const char*>(result.const_data_ptr()),
             static_cast<std::streamsize>(result.nbytes()));
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: %s RANKS DIRECTORY JOB...\n", argv[0]);
    return 2;
  }
  try {
    torch::set_num_threads(1);
    for (int i = 3; i < argc; ++i)
      lockstep::run_job(argv[i], std::stoi(argv[1]), argv[2]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
