// The only place where Lockstep joins autograd: a call whenever a gradient is
// final, and one when the backward pass is over.
//
// A tensor has one slot for a hook that runs after its gradient was
// accumulated. What is in the slot already is kept and called first.
//
// Threads: GradientHooks must not be made or destroyed while a backward pass
//          runs over its tensors. The calls come from the thread that runs the
//          backward pass; for tensors on the CPU, the one that called
//          backward().
// Errors:  what a function given here throws, backward() throws.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace lockstep {

class GradientHooks {
 public:
  // From now on calls `arrived(i)` whenever the gradient of `parameters[i]` has
  // been accumulated into its .grad. `names` are the parameters' names, for
  // messages. InvalidArgument when a parameter has such hooks already.
  GradientHooks(std::vector<at::Tensor> parameters,
                std::span<const std::string> names,
                std::function<void(std::size_t)> arrived);

  // Takes the hooks out, or disarms those that others have since put theirs
  // in front of.
  ~GradientHooks();

  GradientHooks(const GradientHooks&) = delete;
  GradientHooks& operator=(const GradientHooks&) = delete;

 private:
  std::vector<at::Tensor> parameters_;
  // Hooks refer to it weakly: gone, they do nothing.
  std::shared_ptr<const std::function<void(std::size_t)>> arrived_;
};

// To be called during a backward pass. When the pass is over `finish` is
// called, before backward() returns. When the pass ends in an exception, or
// `finish` itself is never reached, `abandon` is called instead; it must not
// throw. A pass that runs inside a node of another, as a checkpoint's does,
// belongs to the outer one and is over when that is.
void at_end_of_backward(std::function<void()> finish,
                        std::function<void()> abandon);

}  // namespace lockstep
