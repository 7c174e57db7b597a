// A learning rate that falls along a half cosine, for a user's own training
// loop:
//
//     torch::optim::SGD optimizer(model.parameters(), 0.1);
//     lockstep::CosineAnnealingLR schedule(optimizer, {.t_max = epochs});
//     for (int epoch = 0; epoch < epochs; ++epoch) {
//       …                  // optimizer.step(), batch by batch
//       schedule.step();
//     }
//
// LibTorch has only StepLR and ReduceLROnPlateau. This class works on any
// optimizer of LibTorch's and Lockstep's, each group of parameters by its own
// rate. After the n-th step() a rate is min + (first - min) (1 + cos(π n /
// t_max)) / 2; beyond t_max it rises again, as in PyTorch. With a warm-up the
// cosine begins after it. That follows from the first rate and n alone: a rate
// that the program sets in between holds until the next step(). PyTorch
// computes each rate from the present one, so there such a change stays.
//
// Threads: single-threaded. The optimizer must outlive it.
// Errors:  InvalidArgument for a t_max below 1, a rate that is NaN or infinite,
//          a negative last_epoch or warmup, and a start_factor that is not
//          from 0 to 1.
// Source:  torch.optim.lr_scheduler.CosineAnnealingLR; with a warm-up LinearLR
//          before it in a SequentialLR; Loshchilov and Hutter,
//          "SGDR: Stochastic Gradient Descent with Warm Restarts", ICLR 2017.
#pragma once

#include <torch/optim/optimizer.h>
#include <torch/optim/schedulers/lr_scheduler.h>

#include <cstdint>
#include <vector>

namespace lockstep {

struct CosineAnnealingOptions {
  // Calls of step() until the rate reaches its minimum, after the warm-up.
  std::int64_t t_max = 1;
  double eta_min = 0;
  // Calls of step() in the run that this one resumes; PyTorch's last_epoch is
  // one less. The optimizer must have its first rates when the schedule is
  // made: set them again after a checkpoint has restored later ones. PyTorch
  // finds them as initial_lr, which LibTorch's optimizers do not keep.
  std::int64_t last_epoch = 0;
  // Calls of step() during which the rate first rises linearly, from
  // start_factor times the optimizer's rate to all of it.
  std::int64_t warmup = 0;
  double start_factor = 0.01;
};

class CosineAnnealingLR final : public torch::optim::LRScheduler {
 public:
  // The cosine begins with the present rates of `optimizer`, to which a warm-up
  // rises.
  CosineAnnealingLR(torch::optim::Optimizer& optimizer,
                    const CosineAnnealingOptions& options);

  // Calls of step(), those before `last_epoch` included.
  std::int64_t last_epoch() const { return options_.last_epoch + step_count_; }

 private:
  // LibTorch gets the next rates here, and then counts the step.
  std::vector<double> get_lrs() override;
  std::vector<double> rates_after(std::int64_t steps) const;

  CosineAnnealingOptions options_;
  std::vector<double> first_rates_;  // by group
};

}  // namespace lockstep
