// What an optimizer's next step multiplies gradients with as it reads them.
//
// A factor is of gradients as they are when it is given: once one is another
// tensor, or was written to, it is forgotten, as a step's that was left out. A
// factor that is given while no parameter has a gradient is of those that the
// next pass brings.
//
// Threads: single-threaded.
// Errors:  none.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "lockstep/torch/seen_gradients.h"

namespace lockstep {

class GradientFactor {
 public:
  using Tensors = std::span<const at::Tensor>;

  // Factors of several calls multiply.
  void scale(double factor, Tensors parameters);
  // Of several calls the last counts.
  void clip(double factor, Tensors parameters);
  void forget();

  // Ranks that have gradients of their own may forget at different moments,
  // though all call scale() and clip() alike. So they agree on the most of what
  // first_call() returns, and pass it to forget_before(). Whether there is
  // something to agree on, is_asked(), is the same on all.
  bool is_asked() const { return calls_ != taken_; }
  // The number of the first call that still counts.
  std::uint64_t first_call(Tensors parameters);
  void forget_before(std::uint64_t call);

  // The product of what scale() was given.
  double scaled_by(Tensors parameters);
  // All of it, and forgets it.
  double take(Tensors parameters);

 private:
  void forget_other_gradients(Tensors parameters);

  struct Given {
    std::uint64_t call;
    double factor;
  };
  std::vector<Given> scales_;
  std::optional<Given> clip_;
  std::uint64_t calls_ = 0;  // of scale() and clip()
  std::uint64_t first_ = 0;  // that counts
  std::uint64_t taken_ = 0;  // calls when take() was called last
  SeenGradients seen_;
};

}  // namespace lockstep
