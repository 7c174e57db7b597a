// Averages the parameters of models that train apart for some steps.
//
// To be called by every rank after each step of its optimizer; some of the
// calls average. See PostLocalSgdHook.
//
// Threads: single-threaded, called by every rank of the group alike.
// Errors:  InvalidArgument for periods and sizes that do not fit; what
//          ProcessGroup's operations throw.
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
  // Steps after which no parameters are averaged, since gradients were.
  std::int64_t warmup_steps = 0;
  // The ranks among which to average; default_group() when empty.
  std::shared_ptr<ProcessGroup> group{};
};

// Averages over all ranks after the first of every `period` steps.
class PeriodicModelAverager {
 public:
  explicit PeriodicModelAverager(PeriodicModelAveragerOptions options);

  void average_parameters(at::TensorList parameters);

  // Calls of average_parameters so far: what a run that goes on needs.
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

// Averages often within small groups, and seldom within large ones: of the
// levels whose period a step is a multiple of, the largest.
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
