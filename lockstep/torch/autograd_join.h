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
#include <cstdint>
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

// What is to be done when a backward pass is over, before backward() returns.
//
// Of all that a pass has to do, every start_rest() is called first, and then
// every finish(), in the order of their numbers, whichever gradient came first
// on this rank. So nothing that one waits for depends on what another has still
// to start. What several throw: backward() throws the first, after all were
// called.
struct EndOfBackward {
  // Before whose finish() this one's comes: ranks that do something together
  // in finish() have their numbers in the same order.
  std::uint64_t number = 0;
  std::function<void()> start_rest;  // waits for no rank
  std::function<void()> finish;      // left out where start_rest() has thrown
  // Called in the place of both when the pass ends in an exception. Must not
  // throw.
  std::function<void()> abandon;
};

// To be called during a backward pass. A pass that runs inside a node of
// another, as a checkpoint's does, belongs to the outer one and is over when
// that is.
void at_end_of_backward(EndOfBackward end);

}  // namespace lockstep
