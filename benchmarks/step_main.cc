// One rank of a training step: LibTorch alone, under our
// DistributedDataParallel, or that with a sharded optimizer that averages
// gradients as it updates:
//
//   lockstep_step cnn|mlp libtorch|ddp|sharded|threads [deterministic] REQUESTS
//   lockstep_step cnn|mlp libtorch|ddp|sharded first
//
// `threads` is LibTorch alone that does the work of two ranks, with two compute
// threads. Batch 64 a rank, SGD with momentum 0.5 and learning rate 0.01.
// Answers three questions of the driver (requests.h): "steps N", the median
// time of so many steps; "fingerprints N", of so many comparisons of all
// weights; and "state": the last loss, whether all ranks have the same weights,
// and memory. With `deterministic` there is no dropout, so that losses can be
// compared with PyTorch's. `first` makes one step, says so and ends.
#include <torch/nn/functional/loss.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <fstream>
#include <functional>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "benchmarks/requests.h"
#include "lockstep/base/settings.h"
#include "lockstep/comm/init.h"
#include "lockstep/torch/distributed_data_parallel.h"
#include "lockstep/torch/running_fingerprint.h"
#include "lockstep/torch/tensor_buffer.h"
#include "lockstep/torch/zero_redundancy_optimizer.h"
#include "lockstep/train/models.h"

namespace lockstep {
namespace {

constexpr std::int64_t kBatch = 64;
constexpr std::uint64_t kSeed = 1234;

struct Job {
  std::string model;
  bool ddp = false;
  bool sharded = false;  // then ddp, too
  bool deterministic = false;
  int threads = 1;  // and so many times a rank's batch
};

std::shared_ptr<Classifier> make_classifier(const Job& job, int rank) {
  ModelOptions options;
  options.hidden = {4096, 4096};
  options.seed = kSeed;
  options.dropout_seed = kSeed + static_cast<std::uint64_t>(rank);
  if (job.deterministic) options.dropout = 0;
  return make_model(job.model, options);
}

// A model and what trains it. `forward` hides whether it is wrapped.
class Training {
 public:
  explicit Training(const Job& job) {
    if (job.ddp) group_ = init_process_group();
    rank_ = Settings::from_environment().rank.value_or(0);
    model_ = make_classifier(job, rank());
    forward_ = [this](const at::Tensor& x) { return model_->forward(x); };
    if (job.ddp) {
      replica_ = std::make_unique<DistributedDataParallel<Classifier>>(
          model_,
          DistributedDataParallelOptions{.average_gradients = !job.sharded});
      forward_ = [this](const at::Tensor& x) { return replica_->forward(x); };
    }
    // As PyTorch's loop, but for its wrapper: the same numbers everywhere.
    torch::manual_seed(kSeed + static_cast<std::uint64_t>(rank()));
    const std::int64_t batch = kBatch * job.threads;
    images_ = torch::randn({batch, 1, 28, 28});
    labels_ = torch::randint(0, 10, {batch}, torch::kLong);
    const auto rule = torch::optim::SGDOptions(0.01).momentum(0.5);
    if (job.sharded)
      optimizer_ = std::make_unique<ZeroRedundancyOptimizer>(
          model_->parameters(), rule,
          ZeroRedundancyOptimizerOptions{.averages_gradients = true});
    else
      optimizer_ =
          std::make_unique<torch::optim::SGD>(model_->parameters(), rule);
  }

  // Of the process: those that do not talk are numbered too.
  int rank() const { return rank_; }

  // Milliseconds.
  double step() {
    const auto begin = std::chrono::steady_clock::now();
    optimizer_->zero_grad();
    const at::Tensor loss =
        torch::nn::functional::cross_entropy(forward_(images_), labels_);
    loss.backward();
    optimizer_->step();
    loss_ = loss;
    return std::chrono::duration<double, std::milli>(
               std::chrono::steady_clock::now() - begin)
        .count();
  }

  // Milliseconds of a comparison of the replicas, after a step, as it comes in
  // training.
  double fingerprint() {
    step();
    RunningFingerprint replicas(model_, {.group = group_});
    const auto begin = std::chrono::steady_clock::now();
    replicas.check();
    return std::chrono::duration<double, std::milli>(
               std::chrono::steady_clock::now() - begin)
        .count();
  }

  double loss() const { return loss_.defined() ? loss_.item<double>() : 0; }

  // Every rank's `value`.
  std::vector<double> gather(double value) {
    std::vector<double> own{value}, all{value};
    if (!group_) return all;
    all.resize(static_cast<std::size_t>(group_->size()));
    group_->all_gather(view(own), view(all)).wait();
    return all;
  }

  // Whether all ranks have the same bits in every parameter.
  bool replicas_are_equal() {
    const at::NoGradGuard no_grad;
    for (const at::Tensor& parameter : model_->parameters()) {
      if (!group_) return true;
      const at::Tensor own = parameter.detach().clone();
      const at::Tensor all = own.new_empty({group_->size(), own.numel()});
      group_->all_gather(view(own), view(all)).wait();
      for (int r = 0; r < group_->size(); ++r)
        if (!all[r].equal(own.flatten())) return false;
    }
    return true;
  }

 private:
  std::shared_ptr<ProcessGroup> group_;
  int rank_ = 0;
  std::shared_ptr<Classifier> model_;
  std::unique_ptr<DistributedDataParallel<Classifier>> replica_;
  std::function<at::Tensor(const at::Tensor&)> forward_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  at::Tensor images_, labels_, loss_;
};

// The number after `name` in a file of /proc, in MiB.
double proc_mib(const std::string& path, const std::string& name) {
  std::ifstream lines(path);
  std::string line;
  while (std::getline(lines, line))
    if (line.rfind(name + ":", 0) == 0)
      return std::stod(line.substr(name.size() + 1)) / 1024;
  return 0;
}

// This process's part of the resident memory at its peak: of what several
// processes map, each one's share as it is now.
double peak_mib() {
  const double peak = proc_mib("/proc/self/status", "VmHWM");
  const double now = proc_mib("/proc/self/status", "VmRSS");
  return peak - now + proc_mib("/proc/self/smaps_rollup", "Pss");
}

double sum(const std::vector<double>& values) {
  double result = 0;
  for (const double value : values) result += value;
  return result;
}

std::string answer(Training& training, const std::string& request) {
  std::istringstream words(request);
  std::string what;
  int steps = 0;
  words >> what >> steps;
  std::ostringstream answer;
  answer.precision(9);
  if (what == "steps") {
    std::vector<double> times(static_cast<std::size_t>(std::max(1, steps)));
    for (double& time : times) time = training.step();
    answer << R"({"step_ms": )" << median(times);
  } else if (what == "fingerprints") {
    std::vector<double> times(static_cast<std::size_t>(std::max(1, steps)));
    for (double& time : times) time = training.fingerprint();
    answer << R"({"fingerprint_ms": )" << median(times);
  } else {
    // Before the ranks are compared, which takes memory.
    const double peak = sum(training.gather(peak_mib()));
    answer << R"({"peak_mib": )" << peak << R"(, "loss": )" << training.loss()
           << R"(, "replicas_equal": )"
           << (training.replicas_are_equal() ? "true" : "false");
  }
  answer << "}";
  return answer.str();
}

int run(const std::vector<std::string>& arguments) {
  const Job job{
      .model = arguments[0],
      .ddp = arguments[1] == "ddp" || arguments[1] == "sharded",
      .sharded = arguments[1] == "sharded",
      .deterministic = arguments[2] == "deterministic",
      .threads = arguments[1] == "threads" ? 2 : 1,
  };
  torch::set_num_threads(job.threads);
  Training training(job);
  if (arguments.back() == "first") {
    training.step();
    std::cout << "first step" << std::endl;
    return 0;
  }
  answer_requests(
      arguments.back(), training.rank(),
      [&](const std::string& request) { return answer(training, request); });
  return 0;
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  if (arguments.size() < 3) {
    std::cerr << "usage: lockstep_step cnn|mlp libtorch|ddp|sharded|threads "
                 "[deterministic] REQUESTS | first\n";
    return 2;
  }
  try {
    return lockstep::run(arguments);
  } catch (const std::exception& error) {
    std::cerr << error.what() << std::endl;
    return 1;
  }
}
