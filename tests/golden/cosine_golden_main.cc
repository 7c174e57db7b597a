// Writes the rates of CosineAnnealingLR, one group of parameters after another.
//
//   lockstep_cosine_golden RANKS DIRECTORY JOB…
//
// A job is T_MAX.STEPS.WARMUP; its rates go to JOB.f32, as float32.
#include <torch/torch.h>

#include <string>
#include <vector>

#include "lockstep/torch/optimizers.h"
#include "src/torch/testing/tensor_file.h"
#include "tests/golden/golden_main.h"

namespace lockstep {
namespace {

// The same numbers stand in cosine_golden.py.
constexpr double kRates[] = {0.3, 0.01};
constexpr double kLeast = 0.002;
constexpr double kStartFactor = 0.1;

void run_job(const std::string& job, int /*ranks*/,
             const std::string& directory) {
  const auto dot = job.find('.');
  const int t_max = std::stoi(job.substr(0, dot));
  const int steps = std::stoi(job.substr(dot + 1));
  const int warmup = std::stoi(job.substr(job.rfind('.') + 1));
  std::vector<torch::optim::OptimizerParamGroup> groups;
  for (const double rate : kRates)
    groups.emplace_back(std::vector<at::Tensor>{torch::zeros({1})},
                        std::make_unique<torch::optim::SGDOptions>(rate));
  FusedSGD optimizer(groups, torch::optim::SGDOptions(1));
  CosineAnnealingLR schedule(optimizer, {.t_max = t_max,
                                         .eta_min = kLeast,
                                         .warmup = warmup,
                                         .start_factor = kStartFactor});
  std::vector<float> rates;
  for (int step = 0; step < steps; ++step) {
    for (const auto& group : optimizer.param_groups())
      rates.push_back(static_cast<float>(group.options().get_lr()));
    schedule.step();
  }
  write_tensor(directory + "/" + job + ".f32", torch::tensor(rates));
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  return lockstep::golden_main(argc, argv, lockstep::run_job);
}
