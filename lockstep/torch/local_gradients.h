// The gradients of an optimizer that averages them itself: each rank has its
// own until somebody needs the average.
//
// Threads: single-threaded.
// Errors:  InvalidArgument on every rank alike when some rank has one that
//          check_gradient() refuses;
//          what ProcessGroup's operations throw.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <span>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/torch/seen_gradients.h"
#include "lockstep/torch/update_state.h"

namespace lockstep {

class LocalGradients {
 public:
  // `parameters` are the same on every rank, and outlive it.
  LocalGradients(std::shared_ptr<ProcessGroup> group,
                 std::span<const OptimizedParameter> parameters);

  // By parameter, whether no rank has a gradient of it. Every rank calls it.
  std::vector<char> missing_everywhere() const;

  // Makes every .grad the average over the ranks, but for the parameters that
  // are `settled`, alike on all ranks. One that this rank does not have counts
  // as zero; one in memory that is not its own becomes a copy. Every rank calls
  // it.
  void average(const std::vector<char>& settled);

  // The same for all of them, and remembered: from here on averaged() tells
  // whether every .grad of every rank is what this left, and no backward pass,
  // nor anybody else, has changed it since. Every rank calls both.
  void average_all();
  bool averaged();

 private:
  std::shared_ptr<ProcessGroup> group_;
  std::span<const OptimizedParameter> parameters_;
  std::vector<at::Tensor> tensors_;  // of parameters_
  SeenGradients averages_;           // when average_all() ended
  bool remembers_ = false;           // on every rank alike
};

}  // namespace lockstep
