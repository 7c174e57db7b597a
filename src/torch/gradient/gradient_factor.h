// The factor by which an optimizer's next step multiplies gradients as it reads
// them.
//
// A factor applies to the gradients at the time of the call: once one of them
// is another tensor, or was written to, the factor is forgotten, as that of a
// skipped step. A factor that is given while no parameter has a gradient
// applies to those of the next pass.
//
// Threads: single-threaded.
// Errors:  none.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "src/torch/gradient/seen_gradients.h"

namespace lockstep {

class GradientFactor {
 public:
  using Tensors = std::span<const at::Tensor>;

  // Factors of several calls multiply.
  void scale(double factor, Tensors parameters);
  // Of several calls the last counts.
  void clip(double factor, Tensors parameters);
  void forget();

  // Ranks with local gradients may forget factors at different times, though
  // all make the same calls of scale() and clip(). So they agree on the maximum
  // of first_call() over the ranks, and pass it to forget_before(). is_asked()
  // says whether this is needed; it is the same on all ranks.
  bool is_asked() const { return calls_ != taken_; }
  // The number of the first call that still counts.
  std::uint64_t first_call(Tensors parameters);
  void forget_before(std::uint64_t call);

  // The product of the factors given to scale().
  double scaled_by(Tensors parameters);
  // The product of all factors, clipping included; forgets them.
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
  std::uint64_t first_ = 0;  // the first call that counts
  std::uint64_t taken_ = 0;  // value of calls_ at the last take()
  SeenGradients seen_;
};

}  // namespace lockstep
