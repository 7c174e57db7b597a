// The only place where Lockstep hooks into autograd: a call when a gradient is
// final, and one when the backward pass is over.
//
// A tensor has one slot for a hook that runs after its gradient was
// accumulated. A hook that is in the slot already is kept and called first. One
// that other code sets later, in the place of ours, destroys ours, whose
// destructor puts another one into the slot behind it: no gradient is missed,
// unless other code takes our hook out of the slot and keeps it.
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

// What the hooks of a GradientHooks share.
class HookTarget;

class GradientHooks {
 public:
  // Calls `arrived(i)` from now on, whenever the gradient of `parameters[i]`
  // has been accumulated into its .grad. `names` are the parameters' names, for
  // messages. InvalidArgument when a parameter has such hooks already.
  GradientHooks(std::vector<at::Tensor> parameters,
                std::span<const std::string> names,
                std::function<void(std::size_t)> arrived);

  // Removes the hooks, or disarms those in front of which other code has since
  // put its own.
  ~GradientHooks();

  GradientHooks(const GradientHooks&) = delete;
  GradientHooks& operator=(const GradientHooks&) = delete;

 private:
  // Hooks hold it weakly: once it is destroyed, they do nothing.
  std::shared_ptr<HookTarget> target_;
};

// Work for the end of a backward pass, before backward() returns.
//
// At the end of a pass every start_rest() is called first, and then every
// finish(), in the order of their numbers, whichever gradient came first on
// this rank. So no finish() waits for an operation that another has still to
// start. When several throw, backward() throws the first exception, after all
// were called.
struct EndOfBackward {
  // The position of this finish() among the others: ranks that communicate in
  // finish() number theirs in the same order.
  std::uint64_t number = 0;
  std::function<void()> start_rest;  // waits for no rank
  std::function<void()> finish;      // skipped if start_rest() threw
  // Called instead of both when the pass ends in an exception. Must not throw.
  std::function<void()> abandon;
};

// Calls `come` in each backward pass that computes the gradient of `output`,
// before the gradients of what it was computed from. Does nothing for an output
// that was not computed, whose hook would stay.
void call_when_gradient_comes(const at::Tensor& output,
                              std::function<void()> come);

// Whether the backward pass under way computes the gradients of some tensors
// only, as torch::autograd::grad() does.
bool is_pass_of_some_inputs();

// Call it during a backward pass. A pass that runs inside a node of another, as
// a checkpoint's does, belongs to the outer pass and ends with it.
void at_end_of_backward(EndOfBackward end);

}  // namespace lockstep
