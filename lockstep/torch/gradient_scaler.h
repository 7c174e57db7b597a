// Keeps small gradients from becoming zero in float16: the loss is multiplied
// with a scale, gradients are divided by it before they are used, and a step in
// which one of them overflowed is left out.
//
//     lockstep::GradientScaler scaler;
//     …
//     optimizer.zero_grad();
//     scaler.scale(loss).backward();
//     scaler.unscale_(optimizer);     // only where gradients are looked at
//     optimizer.clip_grad_norm(1.0);
//     scaler.step(optimizer);         // left out on every rank, or on none
//     scaler.update();
//
// As torch.amp.GradScaler, name for name: the scale falls after a step that was
// left out and grows after a number of steps that were not. But whether a step
// is left out is decided by all ranks together: also where gradients are not
// averaged yet, as with an optimizer that averages them itself, one rank's
// overflow keeps all from stepping, and scales stay equal. bfloat16 has
// float32's range and needs none of this.
//
// With an optimizer that ScalesGradients, step() alone does not write to
// gradients: it reads them for overflow, and the division is part of the step.
// unscale_() always changes .grad.
//
// Every rank calls unscale_(), step() and update() at the same point of the
// program. Several optimizers may share a scaler: each steps or not by its own
// gradients, and one update() follows.
//
// Threads: single-threaded.
// Errors:  InvalidArgument for options that cannot work and for calls out of
//          order, and on every rank for gradients on some rank that cannot be
//          unscaled. Mismatch on every rank when their scales differ. What
//          ProcessGroup's operations throw.
// Source:  Micikevicius et al., "Mixed Precision Training", ICLR 2018.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <map>
#include <memory>
#include <optional>

#include "lockstep/comm/process_group.h"
#include "lockstep/torch/scales_gradients.h"

namespace lockstep {

struct GradientScalerOptions {
  // The ranks that decide together; default_group() when empty.
  std::shared_ptr<ProcessGroup> group{};
  double init_scale = 65536;
  double growth_factor = 2;     // above 1
  double backoff_factor = 0.5;  // between 0 and 1
  int growth_interval = 2000;   // steps in a row of which none was left out
  // Without it losses are not scaled and every step is made, at no cost: a loop
  // need not tell the two cases apart.
  bool enabled = true;
};

class GradientScaler {
 public:
  // What changes while one trains. The scale is a float32, as PyTorch's.
  struct State {
    double scale = 0;
    int growth_tracker = 0;  // steps made since the scale changed
    friend bool operator==(const State&, const State&) = default;
  };

  explicit GradientScaler(const GradientScalerOptions& options = {});

  // `loss` times the scale: float32 where the loss has 16 bits, since they have
  // no room for it.
  at::Tensor scale(const at::Tensor& loss) const;

  // Divides the .grad of the optimizer's parameters by the scale, in place, and
  // finds out whether all are finite on every rank. At most once a step, after
  // the last backward pass and before what clips or looks at gradients.
  void unscale_(torch::optim::Optimizer& optimizer);

  // Calls optimizer.step(), on gradients that are divided by the scale, unless
  // one on some rank is not finite. Returns whether it did, the same on every
  // rank.
  bool step(torch::optim::Optimizer& optimizer);

  // Sets the scale for the next step: `new_scale` when it is given.
  void update(std::optional<double> new_scale = {});

  // 1 when it is not enabled.
  double get_scale() const;
  bool is_enabled() const { return options_.enabled; }

  // For checkpoints; to be loaded on every rank. torch::save() and
  // torch::load() take a scaler too.
  const State& state_dict() const { return state_; }
  void load_state_dict(const State& state);

 private:
  // What has been done for an optimizer since the last update().
  struct Progress {
    bool finite = true;
    bool stepped = false;
    // What divides in its step; null where .grad is divided already.
    ScalesGradients* dividing = nullptr;
  };
  enum class Finding : int;

  Finding agree(Finding own) const;
  void begin(torch::optim::Optimizer& optimizer, ScalesGradients* dividing);

  std::shared_ptr<ProcessGroup> group_;
  GradientScalerOptions options_;
  State state_;
  std::map<const torch::optim::Optimizer*, Progress> progress_;
};

torch::serialize::OutputArchive& operator<<(
    torch::serialize::OutputArchive& archive, const GradientScaler& scaler);
torch::serialize::InputArchive& operator>>(
    torch::serialize::InputArchive& archive, GradientScaler& scaler);

}  // namespace lockstep
