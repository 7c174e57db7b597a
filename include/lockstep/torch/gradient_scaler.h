// Keeps small gradients from becoming zero in float16: the scaler multiplies
// the loss by a scale, divides gradients by it before use, and skips a step in
// which a gradient overflowed.
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
// It has the names of torch.amp.GradScaler: the scale falls after a skipped
// step and grows after a number of steps that were made. But all ranks decide
// together whether to skip a step: even where gradients are not averaged yet,
// as with an optimizer that averages them itself, one rank's overflow makes all
// ranks skip, and scales stay equal. bfloat16 has float32's range and needs no
// scaler.
//
// With an optimizer that ScalesGradients, step() alone does not write to
// gradients: it checks them for overflow, and the division is part of the step.
// unscale_() always changes .grad.
//
// Every rank calls unscale_(), step() and update() at the same point of the
// program. Several optimizers may share a scaler: each steps or skips by its
// own gradients, and one update() follows.
//
// Threads: single-threaded.
// Errors:  InvalidArgument for options that cannot work and for calls out of
//          order, and on every rank when some rank has gradients that cannot be
//          unscaled. Mismatch on every rank when their scales differ. Those of
//          ProcessGroup's operations.
// Source:  Micikevicius et al., "Mixed Precision Training", ICLR 2018.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <map>
#include <memory>
#include <optional>

#include "lockstep/comm/process_group.h"

namespace lockstep {

// An optimizer whose step() multiplies gradients by a factor at no cost, as it
// reads them anyway: FusedSGD, FusedAdam, FusedAdamW and
// ZeroRedundancyOptimizer. GradientScaler uses this interface.
//
// Threads: like the optimizer.
class ScalesGradients {
 public:
  virtual ~ScalesGradients() = default;

  // The next step() multiplies every gradient by `factor`; factors of several
  // calls multiply. .grad stays as it is. The factor applies to the present
  // gradients only: once one of them is another tensor, or was written to, it
  // is forgotten.
  virtual void scale_gradients(double factor) = 0;

  // Returns the product of the factors, clipping included, and forgets them:
  // for a caller that changes the gradients and sets the factor again.
  virtual double take_scaling() = 0;

  // Forgets the factors, clipping included, of a skipped step.
  virtual void forget_scaling() = 0;
};

// An optimizer that reduces gradients in step() if the passes before it have
// not: DistributedOptimizer. GradientScaler calls synchronize() before it looks
// at gradients, so that it sees an overflow of the reduction.
//
// Threads: like the optimizer.
class SynchronizesGradients {
 public:
  virtual ~SynchronizesGradients() = default;

  // Makes .grad what the next step() reads. Every rank calls it at the same
  // point.
  virtual void synchronize() = 0;
};

struct GradientScalerOptions {
  // The ranks that decide together; default_group() when empty.
  std::shared_ptr<ProcessGroup> group{};
  double init_scale = 65536;
  double growth_factor = 2;     // above 1
  double backoff_factor = 0.5;  // between 0 and 1
  int growth_interval = 2000;   // consecutive steps without a skip
  // When false, losses are not scaled and every step is made, at no cost: a
  // loop needs no second case.
  bool enabled = true;
};

class GradientScaler {
 public:
  // The state that changes during training. The scale is a float32, as
  // PyTorch's.
  struct State {
    double scale = 0;
    int growth_tracker = 0;  // steps made since the scale changed
    friend bool operator==(const State&, const State&) = default;
  };

  explicit GradientScaler(const GradientScalerOptions& options = {});

  // `loss` times the scale; in float32 where the loss has 16 bits, whose range
  // is too small.
  at::Tensor scale(const at::Tensor& loss) const;

  // Divides the .grad of the optimizer's parameters by the scale, in place, and
  // checks whether all are finite on every rank. Call it at most once per step,
  // after the last backward pass and before code that clips or reads gradients.
  // NOLINTNEXTLINE(readability-identifier-naming): torch's name
  void unscale_(torch::optim::Optimizer& optimizer);

  // Calls optimizer.step(), on gradients divided by the scale, unless one on
  // some rank is not finite. Returns whether it did, the same on every rank.
  bool step(torch::optim::Optimizer& optimizer);

  // Sets the scale for the next step: `new_scale` when it is given.
  void update(std::optional<double> new_scale = {});

  // 1 when not enabled.
  double get_scale() const;
  bool is_enabled() const { return options_.enabled; }

  // For checkpoints; every rank must load it. torch::save() and torch::load()
  // take a scaler too.
  const State& state_dict() const { return state_; }
  void load_state_dict(const State& state);

 private:
  // An optimizer's calls since the last update().
  struct Progress {
    bool finite = true;
    bool stepped = false;
    // The optimizer whose step divides; null where .grad is divided already.
    ScalesGradients* dividing = nullptr;
  };
  enum class Finding : int;

  Finding agree(Finding own) const;
  void synchronize_or_tell(torch::optim::Optimizer& optimizer);
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
