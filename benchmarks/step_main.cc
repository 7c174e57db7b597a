// One rank of a training step: LibTorch alone, under our
// DistributedDataParallel, or that with a sharded optimizer that averages
// gradients as it updates (step_job.h):
//
//   lockstep_step MODEL libtorch|ddp|sharded|threads [deterministic] REQUESTS
//   lockstep_step MODEL libtorch|ddp|sharded first
//
// MODEL is cnn, mlp, convnet, resnet18 or transformer. `threads` is LibTorch
// alone that does the work of two ranks, with two compute threads. Answers
// three questions of the driver (requests.h): "steps N", the median and the
// mean time of so many steps; "fingerprints N", of so many comparisons of all
// weights; and "state": the last loss and, where gradients are clipped, their
// norm before that, the number of parameters, whether all ranks have the same
// weights, and memory. With `deterministic` there is no dropout, so that losses
// can be compared with PyTorch's. `first` makes one step, says so and ends.
#include <torch/nn/functional/loss.h>
#include <torch/utils.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <iostream>
#include <memory>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include "apps/trainer/model/models.h"
#include "benchmarks/requests.h"
#include "benchmarks/step_job.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/groups.h"
#include "lockstep/torch/consistency.h"
#include "lockstep/torch/tensor_collectives.h"
#include "src/base/main_function.h"
#include "src/base/settings.h"

namespace lockstep {
namespace {

// A model and what trains it.
class Training {
 public:
  explicit Training(const StepJob& job) {
    if (job.way != StepWay::kLibTorch) group_ = init_process_group();
    rank_ = Settings::from_environment().rank.value_or(0);
    model_ = make_step_model(job, rank_);
    batch_ = make_step_batch(job, rank_);
    update_ = make_step_update(job, *model_.module);
  }

  // Of the process: those that do not talk are numbered too.
  int rank() const { return rank_; }

  // Milliseconds.
  double step() {
    const auto begin = std::chrono::steady_clock::now();
    update_.optimizer->zero_grad();
    const at::Tensor loss = torch::nn::functional::cross_entropy(
        model_.forward(batch_.inputs), batch_.labels);
    loss.backward();
    if (update_.clip) grad_norm_ = update_.clip();
    update_.optimizer->step();
    loss_ = loss;
    return std::chrono::duration<double, std::milli>(
               std::chrono::steady_clock::now() - begin)
        .count();
  }

  // Milliseconds of a comparison of the replicas, after a step, as it comes in
  // training.
  double fingerprint() {
    step();
    RunningFingerprint replicas(model_.module, {.group = group_});
    const auto begin = std::chrono::steady_clock::now();
    replicas.check();
    return std::chrono::duration<double, std::milli>(
               std::chrono::steady_clock::now() - begin)
        .count();
  }

  double loss() const { return loss_.defined() ? loss_.item<double>() : 0; }
  double grad_norm() const { return grad_norm_; }
  std::int64_t parameters() const { return parameter_count(*model_.module); }

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
    for (const at::Tensor& parameter : model_.module->parameters()) {
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
  StepModel model_;
  StepBatch batch_;
  StepUpdate update_;
  at::Tensor loss_;
  double grad_norm_ = 0;
};

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
    answer << R"({"step_ms": )" << median(times) << R"(, "mean_ms": )"
           << sum(times) / static_cast<double>(times.size());
  } else if (what == "fingerprints") {
    std::vector<double> times(static_cast<std::size_t>(std::max(1, steps)));
    for (double& time : times) time = training.fingerprint();
    answer << R"({"fingerprint_ms": )" << median(times);
  } else {
    // Before the ranks are compared, which takes memory.
    const double peak = sum(training.gather(peak_mib()));
    answer << R"({"peak_mib": )" << peak << R"(, "loss": )" << training.loss()
           << R"(, "grad_norm": )" << training.grad_norm()
           << R"(, "parameters": )" << training.parameters()
           << R"(, "replicas_equal": )"
           << (training.replicas_are_equal() ? "true" : "false");
  }
  answer << "}";
  return answer.str();
}

StepWay way_of(const std::string& mode) {
  if (mode == "ddp") return StepWay::kDdp;
  if (mode == "sharded") return StepWay::kSharded;
  if (mode == "libtorch" || mode == "threads") return StepWay::kLibTorch;
  throw InvalidArgument("expected libtorch, ddp, sharded or threads, not \"" +
                        mode + "\"");
}

int run(std::span<const char* const> words) {
  const std::vector<std::string> arguments(words.begin(), words.end());
  if (arguments.size() < 3)
    throw InvalidArgument(
        "usage: lockstep_step MODEL libtorch|ddp|sharded|threads "
        "[deterministic] REQUESTS | first");
  const StepJob job{
      .model = arguments[0],
      .way = way_of(arguments[1]),
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

int main(int count, char** arguments) {
  return lockstep::run_main(count, arguments, lockstep::run);
}
