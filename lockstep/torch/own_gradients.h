// What a backward pass brings each parameter on this rank, before anybody
// averages it: by hooks on the tensors, which autograd calls before it
// accumulates a gradient into .grad.
//
// Threads: as autograd's hooks; made and destroyed outside backward passes.
// Errors:  none of its own.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "lockstep/torch/fingerprint.h"

namespace lockstep {

class OwnGradients {
 public:
  // Keeps the first `kept_elements` elements of each gradient besides.
  OwnGradients(const std::vector<at::Tensor>& parameters,
               std::int64_t kept_elements);
  ~OwnGradients();
  OwnGradients(const OwnGradients&) = delete;
  OwnGradients& operator=(const OwnGradients&) = delete;

  // Of each parameter's gradient; that of an undefined tensor where there was
  // none. Where several passes brought one each, of them in their order.
  const std::vector<Fingerprint>& fingerprints() const;

  // Of what .grad would be after the last pass if nobody averaged what it
  // brought: the gradient and, where passes before it left one, that besides.
  // That of an undefined tensor where none brought one, whatever .grad holds.
  const std::vector<Fingerprint>& unreduced() const;

  // The sum of what passes brought parameter `i`, of its first elements;
  // undefined where nothing came.
  at::Tensor head(std::size_t i) const;

  // Forgets what came so far.
  void clear();

 private:
  struct State;
  std::shared_ptr<State> state_;
  std::vector<unsigned> hooks_;  // of each parameter
};

}  // namespace lockstep
