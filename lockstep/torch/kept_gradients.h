// What parameters' .grad was before a pass moved it into buckets, and when they
// get it back.
//
// A bucket travels whole, so a parameter that a pass did not use takes part
// with what its .grad holds already, which is the same on all ranks, or with
// zeros. If other ranks used it, the average is right; if none did, its .grad
// becomes again what it was.
//
// With Memory::kOwn all others get memory of their own too, with the average in
// it: that which they had, if writing there changes nothing else. Autograd
// gives several parameters one gradient, or parts of one, which only some
// ranks' graphs may do; those get new memory. What was .grad before the forward
// pass, such as a part of one block of all gradients, is the caller's, and
// stays, unless its span overlaps another's, as that of a column of a block.
//
// Threads: single-threaded, as the reducer that owns it.
// Errors:  none.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "lockstep/torch/seen_gradients.h"

namespace lockstep {

class KeptGradients {
 public:
  enum class Memory {
    kBucket,  // .grad stays where the bucket has it
    kOwn,
  };

  KeptGradients(std::size_t parameters, Memory memory);

  // To be called before a forward pass, with all parameters.
  void forward_begins(std::span<const at::Tensor> parameters);

  // To be called before the .grad of `tensor`, the parameter of this number,
  // moves; a second time in a pass it does nothing.
  void keep(std::size_t parameter, const at::Tensor& tensor);

  // Gives `tensor` a .grad that may be reduced in place of the missing one.
  void stand_in(std::size_t parameter, const at::Tensor& tensor);

  // Gives back what was kept; `unused` names the parameters that no rank used.
  void settle(const std::function<bool(std::size_t)>& unused);

 private:
  struct Loan {
    std::size_t parameter;
    at::Tensor tensor;
    at::Tensor gradient;  // .grad as it was, maybe none
    at::Tensor values;    // a copy of it: it may be reduced in place
  };

  // Memory::kOwn only.
  struct Moved {
    std::size_t parameter;
    at::Tensor tensor;
    at::Tensor gradient;  // .grad as it was
    enum { kExclusive, kCallers, kShared } memory;
  };

  void find_shared_among_callers();
  static void give_memory(const Moved& moved);

  Memory memory_;
  std::vector<Loan> loans_;
  std::vector<Moved> moved_;
  std::vector<char> is_kept_;  // by parameter
  SeenGradients before_forward_;
};

}  // namespace lockstep
