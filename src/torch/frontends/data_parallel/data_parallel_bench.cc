// Measures a step's passes of a module on two slots of the CPU, in one process:
// DataParallel, a variant that clones the module at each call, as LibTorch's
// own data_parallel() does, and the module alone with the same number of
// compute threads.
//
// LibTorch's own cannot be measured here: it needs CUDA, even for its header.
// The variant is DataParallel itself, constructed for each call.
#include <benchmark/benchmark.h>
#include <torch/nn.h>
#include <torch/utils.h>

#include <string>
#include <vector>

#include "lockstep/torch/data_parallel.h"

namespace lockstep::data_parallel {
namespace {

constexpr std::int64_t kBatch = 128;
constexpr int kSlots = 2;

struct MlpImpl : torch::nn::Cloneable<MlpImpl> {
  explicit MlpImpl(std::int64_t width) : hidden_width(width) { reset(); }
  void reset() override {
    first = register_module("first", torch::nn::Linear(784, hidden_width));
    second = register_module("second",
                             torch::nn::Linear(hidden_width, hidden_width));
    third = register_module("third", torch::nn::Linear(hidden_width, 10));
  }
  at::Tensor forward(const at::Tensor& images) {
    return third(torch::relu(second(torch::relu(first(images)))));
  }
  std::int64_t hidden_width;
  torch::nn::Linear first{nullptr}, second{nullptr}, third{nullptr};
};
TORCH_MODULE(Mlp);

DataParallel<MlpImpl> over_slots(const Mlp& module) {
  return DataParallel(module,
                      {.devices = std::vector<at::Device>(kSlots, at::kCPU)});
}

template <class Forward>
void passes(benchmark::State& state, Mlp& module, const Forward& forward) {
  const at::Tensor images = torch::randn({kBatch, 784});
  const at::Tensor labels = torch::randint(10, {kBatch}, at::kLong);
  const auto pass = [&] {
    module->zero_grad();
    torch::cross_entropy_loss(forward(images), labels).backward();
  };
  pass();
  for ([[maybe_unused]] auto _ : state) pass();
}

void declare(const std::string& name, std::int64_t width) {
  const auto add = [&](const char* whose, auto run) {
    benchmark::RegisterBenchmark((name + whose).c_str(),
                                 [=](benchmark::State& state) {
                                   torch::set_num_threads(kSlots);
                                   Mlp module(width);
                                   run(state, module);
                                 })
        ->Unit(benchmark::kMillisecond);
  };
  add("/DataParallel", [](benchmark::State& state, Mlp& module) {
    auto model = over_slots(module);
    passes(state, module, [&](const at::Tensor& x) { return model(x); });
  });
  add("/cloning at each call", [](benchmark::State& state, Mlp& module) {
    passes(state, module,
           [&](const at::Tensor& x) { return over_slots(module)(x); });
  });
  add("/the module, 2 threads", [](benchmark::State& state, Mlp& module) {
    passes(state, module,
           [&](const at::Tensor& x) { return module->forward(x); });
  });
}

}  // namespace
}  // namespace lockstep::data_parallel

int main(int argc, char** argv) {
  lockstep::declare("784-256-256-10", 256);
  lockstep::declare("784-4096-4096-10", 4096);
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
}
