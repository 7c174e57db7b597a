// A learning rate that falls along a half cosine, for a loop of one's own:
//
//     torch::optim::SGD optimizer(model.parameters(), 0.1);
//     lockstep::CosineAnnealingLR schedule(optimizer, {.t_max = epochs});
//     for (int epoch = 0; epoch < epochs; ++epoch) {
//       …                  // optimizer.step(), batch by batch
//       schedule.step();
//     }
//
// LibTorch has StepLR and ReduceLROnPlateau only. It works on any optimizer of
// LibTorch's and of ours, each group of parameters by its own rate. After the
// n-th step() a rate is min + (first - min) (1 + cos(π n / t_max)) / 2; beyond
// t_max it rises again, as there.
//
// Threads: single-threaded. The optimizer must outlive it.
// Errors:  InvalidArgument for a t_max below 1, a rate that is no number, and a
//          negative last_epoch.
// Source:  torch.optim.lr_scheduler.CosineAnnealingLR; Loshchilov and Hutter,
//          "SGDR: Stochastic Gradient Descent with Warm Restarts", ICLR 2017.
#pragma once

#include <torch/optim/optimizer.h>
#include <torch/optim/schedulers/lr_scheduler.h>

#include <cstdint>
#include <vector>

namespace lockstep {

struct CosineAnnealingOptions {
  // Calls of step() until the rate is the least.
  std::int64_t t_max = 1;
  double eta_min = 0;
  // Calls of step() in the run that this one goes on from. The optimizer has
  // its first rates when the schedule is made; a state is loaded after that.
  std::int64_t last_epoch = 0;
};

class CosineAnnealingLR final : public torch::optim::LRScheduler {
 public:
  // The rates that `optimizer` has now are those that the cosine begins with.
  CosineAnnealingLR(torch::optim::Optimizer& optimizer,
                    const CosineAnnealingOptions& options);

  // Calls of step(), those before `last_epoch` included.
  std::int64_t last_epoch() const { return options_.last_epoch + step_count_; }

 private:
  // LibTorch asks for the next rates, and counts the step then.
  std::vector<double> get_lrs() override;
  std::vector<double> rates_after(std::int64_t steps) const;

  CosineAnnealingOptions options_;
  std::vector<double> first_rates_;  // by group
};

}  // namespace lockstep
