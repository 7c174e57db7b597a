// Averages the parameters of models that the ranks train separately for some
// steps.
//
// Every rank calls it after each step of its optimizer; some of the calls
// average. See PostLocalSgdHook.
//
// Threads: single-threaded; every rank of the group makes the same calls.
// Errors:  InvalidArgument for periods and sizes that do not fit; those of
//          ProcessGroup's operations.
// Source:  torch.distributed.algorithms.model_averaging.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "lockstep/comm/process_group.h"

namespace lockstep {

struct PeriodicModelAveragerOptions {
  std::int64_t period = 1;
  // The first steps, after which parameters are not averaged, since gradients
  // were.
  std::int64_t warmup_steps = 0;
  // The ranks that average; default_group() when empty.
  std::shared_ptr<ProcessGroup> group{};
};

// Averages over all ranks after the first of every `period` steps.
class PeriodicModelAverager {
 public:
  explicit PeriodicModelAverager(PeriodicModelAveragerOptions options);

  void average_parameters(at::TensorList parameters);

  // Calls of average_parameters so far; a resumed run restores them.
  std::int64_t step() const { return step_; }
  void set_step(std::int64_t step) { step_ = step; }

 private:
  PeriodicModelAveragerOptions options_;
  std::int64_t step_ = 0;
};

struct HierarchicalModelAveragerOptions {
  struct Level {
    std::int64_t period = 1;
    int group_size = 1;  // consecutive ranks
  };
  // Each has a longer period and a larger group than the one before it; the
  // last is the group of all ranks, and group sizes divide its size.
  std::vector<Level> levels{};
  std::int64_t warmup_steps = 0;
  std::shared_ptr<ProcessGroup> group{};
};

// Averages often within small groups, and seldom within large ones: a step
// averages at the largest level whose period divides its number.
class HierarchicalModelAverager {
 public:
  // Makes the groups; every rank calls it.
  explicit HierarchicalModelAverager(
      const HierarchicalModelAveragerOptions& options);

  void average_parameters(at::TensorList parameters);

  std::int64_t step() const { return step_; }
  void set_step(std::int64_t step) { step_ = step; }

 private:
  struct Level {
    std::int64_t period;
    std::shared_ptr<ProcessGroup> group;
  };

  std::vector<Level> levels_;
  std::int64_t warmup_steps_;
  std::int64_t step_ = 0;
};

}  // namespace lockstep
