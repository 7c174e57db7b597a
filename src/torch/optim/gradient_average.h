// The gradients of an optimizer that averages them itself: each rank keeps its
// own until the program needs the average.
//
// Threads: single-threaded.
// Errors:  InvalidArgument on every rank when check_gradient() refuses a
//          gradient on some rank; those of ProcessGroup's operations.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <span>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "src/torch/gradient/seen_gradients.h"
#include "src/torch/optim/update_state.h"

namespace lockstep {

class GradientAverage {
 public:
  // `parameters` are the same on every rank, and outlive it.
  GradientAverage(std::shared_ptr<ProcessGroup> group,
                  std::span<const OptimizedParameter> parameters);

  // For each parameter, whether no rank has a gradient of it. A collective.
  std::vector<char> missing_everywhere() const;

  // Makes every .grad the average over the ranks, except for the parameters
  // that are `settled`, the same on all ranks. A gradient that this rank lacks
  // counts as zero; one whose memory it shares with another tensor becomes a
  // copy. A collective.
  void average(const std::vector<char>& settled);

  // average_all() averages all gradients and remembers them. averaged() then
  // says whether every .grad on every rank is still the same, unchanged by a
  // backward pass or other code. Both are collectives.
  void average_all();
  bool averaged();

 private:
  std::shared_ptr<ProcessGroup> group_;
  std::span<const OptimizedParameter> parameters_;
  std::vector<at::Tensor> tensors_;  // of parameters_
  SeenGradients averages_;           // at the end of average_all()
  bool remembers_ = false;           // the same on every rank
};

}  // namespace lockstep
