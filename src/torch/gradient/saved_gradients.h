// Keeps each parameter's .grad from before a pass moves it into buckets, and
// gives it back.
//
// A bucket is reduced whole, so a parameter that a pass did not use contributes
// its present .grad, which is the same on all ranks, or zeros. If other ranks
// used it, the average is right; if no rank did, its .grad becomes again what
// it was.
//
// With Memory::kOwn all other gradients also leave the bucket, with the
// average: each returns to its former memory, if writing there changes nothing
// else. Autograd may give several parameters one gradient, or parts of one, and
// may do so on some ranks only; such gradients get new memory. A .grad from
// before the forward pass, such as a part of one block of all gradients,
// belongs to the caller and keeps its memory, unless its span overlaps
// another's, as a column of a block does.
//
// Threads: single-threaded, like the reducer that owns it.
// Errors:  none.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "src/torch/gradient/seen_gradients.h"

namespace lockstep {

class SavedGradients {
 public:
  enum class Memory {
    kBucket,  // .grad stays in the bucket
    kOwn,
  };

  SavedGradients(std::size_t parameters, Memory memory);

  // Call it before a forward pass, with all parameters.
  void forward_begins(std::span<const at::Tensor> parameters);

  // Call it before the .grad of `tensor`, the parameter with this index, moves;
  // a second call in a pass does nothing.
  void keep(std::size_t parameter, const at::Tensor& tensor);

  // Gives `tensor` a .grad to reduce in place of the missing one.
  void stand_in(std::size_t parameter, const at::Tensor& tensor);

  // Restores the kept gradients; unused(i) says whether no rank used parameter
  // i.
  void settle(const std::function<bool(std::size_t)>& unused);

 private:
  struct Loan {
    std::size_t parameter;
    at::Tensor tensor;
    at::Tensor gradient;  // .grad as it was, may be undefined
    at::Tensor values;    // a copy: the reduction may overwrite it
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
  std::vector<char> is_saved_;  // by parameter
  SeenGradients before_forward_;
};

}  // namespace lockstep
