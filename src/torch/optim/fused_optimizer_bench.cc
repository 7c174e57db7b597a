// Measures a step of FusedSGD, FusedAdam and FusedAdamW against LibTorch's, on
// the 20,037,642 parameters of the mlp of benchmarks/step, on one thread.
#include <benchmark/benchmark.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <vector>

#include "lockstep/torch/optimizers.h"

namespace lockstep {
namespace {

std::vector<at::Tensor> parameters_with_gradients() {
  std::vector<at::Tensor> parameters;
  for (const std::vector<std::int64_t>& shape :
       {std::vector<std::int64_t>{4096, 784},
        {4096},
        {4096, 4096},
        {4096},
        {10, 4096},
        {10}}) {
    parameters.push_back(torch::randn(shape).requires_grad_(true));
    parameters.back().mutable_grad() = torch::randn(shape);
  }
  return parameters;
}

template <class Optimizer, class Options>
void steps(benchmark::State& state, const Options& options) {
  torch::set_num_threads(1);
  Optimizer optimizer(parameters_with_gradients(), options);
  optimizer.step();  // makes the state
  for ([[maybe_unused]] auto _ : state) optimizer.step();
}

template <class Theirs, class Ours, class Options>
void declare(const std::string& name, const Options& options) {
  const auto add = [&](const char* whose, auto run) {
    benchmark::RegisterBenchmark(
        (name + whose).c_str(),
        [=](benchmark::State& state) { run(state, options); })
        ->Unit(benchmark::kMillisecond);
  };
  add("/LibTorch", steps<Theirs, Options>);
  add("/fused", steps<Ours, Options>);
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  using namespace torch::optim;
  lockstep::declare<SGD, lockstep::FusedSGD>("SGD", SGDOptions(0.01));
  lockstep::declare<SGD, lockstep::FusedSGD>("SGD with momentum",
                                             SGDOptions(0.01).momentum(0.5));
  lockstep::declare<Adam, lockstep::FusedAdam>("Adam", AdamOptions(1e-4));
  lockstep::declare<AdamW, lockstep::FusedAdamW>("AdamW", AdamWOptions(1e-4));
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
}
