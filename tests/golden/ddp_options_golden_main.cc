// Trains a small network under DistributedDataParallel, once for each job.
//
//   lockstep_ddp_options_golden RANKS DIRECTORY JOB…
//
// ddp_options_golden.py writes weights.f32, inputs.f32 and targets.f32 to
// DIRECTORY and lists the jobs; rank 0's parameters and running statistics go
// to JOB.f32.
#include <torch/torch.h>

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "lockstep/comm/groups.h"
#include "lockstep/torch/comm_hooks.h"
#include "lockstep/torch/distributed_data_parallel.h"
#include "src/comm/testing/run_ranks.h"
#include "src/torch/testing/flat_parameters.h"
#include "src/torch/testing/tensor_file.h"
#include "tests/golden/golden_main.h"

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

at::Tensor state_of(const Net& net) {
  return torch::cat(
      {flat_parameters(net), net.norm->running_mean, net.norm->running_var});
}

struct Data {
  at::Tensor weights, inputs, targets;
};

Data read_data(const std::string& directory) {
  const std::int64_t count = flat_parameters(Net()).numel();
  return {read_tensor(directory + "/weights.f32", {count}),
          read_tensor(directory + "/inputs.f32",
                      {kSteps, kRanks, kParts, kSamples, 6}),
          read_tensor(directory + "/targets.f32",
                      {kSteps, kRanks, kParts, kSamples, 3})};
}

DistributedDataParallelOptions options_of(const std::string& job,
                                          std::shared_ptr<ProcessGroup> group) {
  DistributedDataParallelOptions options{.group = std::move(group)};
  const auto is_one_of = [&](std::initializer_list<const char*> names) {
    return std::ranges::find(names, job) != names.end();
  };
  if (is_one_of({"plain", "own_gradients", "accumulate", "unused", "static",
                 "fp16_hook", "bf16_hook"})) {
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

// See Job.register_hook there; null for jobs without a hook.
std::shared_ptr<CommHook> hook_of(const std::string& job,
                                  const std::shared_ptr<ProcessGroup>& group) {
  if (job == "fp16_hook") return fp16_compress_hook();
  if (job == "bf16_hook") return bf16_compress_hook();
  if (job == "power_sgd")
    return std::make_shared<PowerSgdHook>(
        PowerSgdOptions{.start_iteration = 2});
  if (job == "power_sgd_cold")
    return std::make_shared<PowerSgdHook>(
        PowerSgdOptions{.matrix_approximation_rank = 2,
                        .start_iteration = 3,
                        .min_compression_rate = 1,
                        .use_error_feedback = false,
                        .warm_start = false,
                        .random_seed = 7});
  if (job == "fp16_power_sgd")
    return fp16_compress_wrapper(
        std::make_shared<PowerSgdHook>(PowerSgdOptions{.start_iteration = 2}));
  if (job == "post_local" || job == "hierarchical")
    return std::make_shared<PostLocalSgdHook>(PostLocalSgdOptions{
        .subgroup = split(*group, {.color = group->rank() / 2}),
        .start_iteration = 4});
  return nullptr;
}

std::vector<HierarchicalModelAveragerOptions::Level> levels_of(int ranks) {
  if (ranks == 4) return {{2, 2}, {4, 4}};
  return {{2, ranks}};
}

// Trains one rank of one job.
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
                                           .momentum(momentum_of(job_))) {
    if (const auto hook = hook_of(job_, group)) model_.register_comm_hook(hook);
    if (job_ == "post_local")
      average_.emplace<PeriodicModelAverager>(PeriodicModelAveragerOptions{
          .period = 3, .warmup_steps = 4, .group = group});
    if (job_ == "hierarchical")
      average_.emplace<HierarchicalModelAverager>(
          HierarchicalModelAveragerOptions{.levels = levels_of(group->size()),
                                           .warmup_steps = 3,
                                           .group = group});
  }

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
    if (rank_ == 0) set_flat_parameters(*net, data_.weights);
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
      average_parameters();
    }
  }

  void average_parameters() {
    const auto parameters = net_->parameters();
    if (auto* periodic = std::get_if<PeriodicModelAverager>(&average_))
      periodic->average_parameters(parameters);
    if (auto* levels = std::get_if<HierarchicalModelAverager>(&average_))
      levels->average_parameters(parameters);
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
  std::variant<std::monostate, PeriodicModelAverager, HierarchicalModelAverager>
      average_;
};

void run_job(const std::string& job, int ranks, const std::string& directory) {
  const Data data = read_data(directory);
  at::Tensor result;
  run_ranks("shm", ranks, [&](const std::shared_ptr<ProcessGroup>& group) {
    const at::Tensor state = Training(job, data, group).run();
    if (group->rank() == 0) result = state;
  });
  write_tensor(directory + "/" + job + ".f32", result);
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  return lockstep::golden_main(argc, argv, lockstep::run_job);
}
