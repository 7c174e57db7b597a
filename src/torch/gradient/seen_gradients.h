// Remembers which tensor each parameter's .grad was, to tell later whether it
// was replaced or written to.
//
// Threads: single-threaded.
// Errors:  none.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <span>
#include <vector>

#include "src/torch/tensor/tensor_memory.h"

namespace lockstep {

class SeenGradients {
 public:
  // Does not keep the gradients' memory alive.
  void see(std::span<const at::Tensor> parameters);
  void forget() { seen_.clear(); }

  // Whether see() saw no gradient of any parameter, or was not called.
  bool saw_none() const;

  // Whether the .grad of the parameter with this index is the same tensor as at
  // see(); false before see().
  bool is_same(std::size_t parameter, const at::Tensor& tensor) const;
  // Whether all gradients are the same tensors in the same memory, and no
  // autograd operation has written to one. Parameters after those given to
  // see(), as in an optimizer's later groups, do not count. False before see().
  bool are_unchanged(std::span<const at::Tensor> parameters) const;

 private:
  std::vector<SeenTensor> seen_;  // by parameter
};

}  // namespace lockstep
