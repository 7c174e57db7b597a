// The gradients that backward passes bring on this rank, before they are
// averaged: taken by hooks on the tensors, which autograd calls before it
// accumulates a gradient into .grad.
//
// Threads: like autograd's hooks; made and destroyed outside backward passes.
// Errors:  none of its own.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "src/torch/compare/fingerprint.h"

namespace lockstep {

class GradientFingerprints {
 public:
  // Also keeps the first `kept_elements` elements of each gradient.
  GradientFingerprints(const std::vector<at::Tensor>& parameters,
                       std::int64_t kept_elements);
  ~GradientFingerprints();
  GradientFingerprints(const GradientFingerprints&) = delete;
  GradientFingerprints& operator=(const GradientFingerprints&) = delete;

  // One per parameter, of its gradient; of an undefined tensor where no
  // gradient came. Where several passes brought one, it covers them in order.
  const std::vector<Fingerprint>& fingerprints() const;

  // The fingerprints that .grad would have after the last pass without
  // averaging: of the pass's gradient plus what earlier passes left in .grad.
  // Of an undefined tensor where no pass brought a gradient, whatever .grad
  // holds.
  const std::vector<Fingerprint>& unreduced() const;

  // The first elements of parameter `i`'s gradients, summed over the passes;
  // undefined where no gradient came.
  at::Tensor head(std::size_t i) const;

  // Forgets all gradients so far.
  void clear();

 private:
  struct State;
  std::shared_ptr<State> state_;
  std::vector<unsigned> hooks_;  // one per parameter
};

}  // namespace lockstep
