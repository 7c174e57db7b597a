// One rank of a step over many small parameters:
//
//   lockstep_parameters COUNT apart|bare|ddp REQUESTS
//
// Under our DistributedDataParallel; or ranks that do not talk; or these with a
// bare all_reduce after each step, of as many elements, which is what DDP
// cannot do without.
//
// COUNT / 2 modules in a row, each with a weight and a bias of 16 elements. A
// step is a forward and a backward pass: the optimizer's part does not depend
// on who reduced. Answers two questions of the driver (requests.h): "steps N",
// the median time of so many steps, and "verify", whether gradients are the
// average over the ranks.
#include <ATen/ATen.h>
#include <torch/nn/module.h>
#include <torch/utils.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include "benchmarks/requests.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/groups.h"
#include "lockstep/torch/distributed_data_parallel.h"
#include "src/base/main_function.h"
#include "src/base/settings.h"

namespace lockstep {
namespace {

struct Affine : torch::nn::Module {
  Affine()
      : weight(register_parameter("weight", at::ones({16}))),
        bias(register_parameter("bias", at::zeros({16}))) {}
  at::Tensor weight, bias;
};

struct Affines : torch::nn::Module {
  explicit Affines(int count) {
    for (int i = 0; i < count; ++i)
      layers.push_back(register_module("layer" + std::to_string(i),
                                       std::make_shared<Affine>()));
  }
  at::Tensor forward(at::Tensor x) {
    for (const auto& layer : layers) x = x * layer->weight + layer->bias;
    return x;
  }
  std::vector<std::shared_ptr<Affine>> layers;
};

class Step {
 public:
  Step(int count, const std::string& mode)
      : rank_(Settings::from_environment().rank.value_or(0)),
        model_(std::make_shared<Affines>(count / 2)),
        input_(at::full({16}, 1.0 + rank_)),
        expected_(1.0 + rank_) {
    if (mode == "apart") return;
    group_ = init_process_group();
    if (mode == "bare") {
      const auto elements = static_cast<std::size_t>(count) * 16;
      block_ = group_->allocate(elements * sizeof(float));
      floats_ = {reinterpret_cast<float*>(block_.get()), elements};
      return;
    }
    replica_ = std::make_unique<DistributedDataParallel<Affines>>(model_);
    expected_ = (group_->size() + 1) / 2.0;
  }

  int rank() const { return rank_; }

  // Microseconds.
  double run() {
    const auto begin = std::chrono::steady_clock::now();
    for (const auto& layer : model_->layers) {
      layer->weight.mutable_grad().reset();
      layer->bias.mutable_grad().reset();
    }
    const at::Tensor output =
        replica_ ? replica_->forward(input_) : model_->forward(input_);
    output.sum().backward();
    if (block_) group_->all_reduce(view(floats_), ReduceOp::kAverage).wait();
    return std::chrono::duration<double, std::micro>(
               std::chrono::steady_clock::now() - begin)
        .count();
  }

  // A weight's gradient is its input, which is the rank's number and one.
  bool is_as_expected() const {
    return std::ranges::all_of(model_->layers, [this](const auto& layer) {
      return (layer->weight.grad() == expected_).all().template item<bool>() &&
             (layer->bias.grad() == 1).all().template item<bool>();
    });
  }

 private:
  int rank_;
  std::shared_ptr<Affines> model_;
  at::Tensor input_;
  double expected_;
  std::shared_ptr<ProcessGroup> group_;
  std::shared_ptr<std::byte> block_;  // of what is reduced beside the step
  std::span<float> floats_;
  std::unique_ptr<DistributedDataParallel<Affines>> replica_;
};

std::string answer(Step& step, const std::string& request) {
  std::istringstream words(request);
  std::string what;
  int steps = 0;
  words >> what >> steps;
  std::ostringstream answer;
  if (what == "steps") {
    std::vector<double> times(static_cast<std::size_t>(std::max(1, steps)));
    for (double& time : times) time = step.run();
    answer << R"({"step_us": )" << median(times) << "}";
  } else {
    answer << R"({"as_expected": )"
           << (step.is_as_expected() ? "true" : "false") << "}";
  }
  return answer.str();
}

int run(std::span<const char* const> words) {
  const std::vector<std::string> arguments(words.begin(), words.end());
  if (arguments.size() != 3)
    throw InvalidArgument(
        "usage: lockstep_parameters COUNT apart|bare|ddp REQUESTS");
  torch::set_num_threads(1);
  Step step(std::stoi(arguments[0]), arguments[1]);
  answer_requests(arguments[2], step.rank(), [&](const std::string& request) {
    return answer(step, request);
  });
  return 0;
}

}  // namespace
}  // namespace lockstep

int main(int count, char** arguments) {
  return lockstep::run_main(count, arguments, lockstep::run);
}
