// What the .grad of each of some parameters was at one moment: to tell later
// whether it is another tensor by now, or was written to.
//
// Threads: single-threaded.
// Errors:  none.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace lockstep {

class SeenGradients {
 public:
  // Keeps no memory of gradients alive.
  void see(std::span<const at::Tensor> parameters);
  void forget() { seen_.clear(); }

  // Whether see() saw no gradient of any parameter, or was not called.
  bool saw_none() const;

  // Of the parameter of this number, whether .grad is the tensor that it was;
  // false before see().
  bool is_same(std::size_t parameter, const at::Tensor& tensor) const;
  // Whether all are, and no autograd operation has written to one. Parameters
  // that follow those that see() was given, as an optimizer's later groups do,
  // do not count. False before see().
  bool are_unchanged(std::span<const at::Tensor> parameters) const;

 private:
  using Weak =
      c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
  struct Seen {
    Weak gradient;
    bool defined = false;
    std::uint32_t version = 0;
  };
  std::vector<Seen> seen_;  // by parameter
};

}  // namespace lockstep
