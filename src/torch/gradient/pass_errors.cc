#include "src/torch/gradient/pass_errors.h"

namespace lockstep {
namespace {

constexpr char kGraphChanged[] =
    "\n  likely:  the model's graph differs from that of the first pass, but "
    "static_graph requires the same one"
    "\n  next:    leave static_graph off; set find_unused_parameters if some "
    "passes leave parameters unused";

}  // namespace

std::string missing_gradients_text(const ProcessGroup& group,
                                   PassPolicy::Rule rule,
                                   const std::string& lines) {
  std::string text = "backward on rank " + std::to_string(group.rank()) +
                     " of " + std::to_string(group.size()) + " (group \"" +
                     group.name() +
                     "\"): some parameters got no gradient, so there is no "
                     "average of this step" +
                     lines;
  if (rule == PassPolicy::Rule::kAsAtFirst) return text + kGraphChanged;
  return text +
         "\n  likely:  this step's loss does not depend on them"
         "\n  next:    set find_unused_parameters if that is meant; else use "
         "every parameter in forward(), or call requires_grad_(false) on "
         "those that stay unused before wrapping the module; then call "
         "zero_grad() and continue";
}

std::string unexpected_gradient_text(const std::string& name,
                                     PassPolicy::Rule rule) {
  if (rule == PassPolicy::Rule::kAsAtFirst)
    return "parameter " + name +
           " got a gradient that it did not get in the first pass" +
           kGraphChanged;
  return "parameter " + name +
         " got a second gradient in one backward pass, after the first was "
         "reduced already\n"
         "  likely:  parts of the graph run backward() inside backward(), as "
         "checkpoints do, and share the parameter\n"
         "  next:    set static_graph if all passes have the same graph; else "
         "use each parameter in one such part only";
}

std::string create_graph_text() {
  return "backward(create_graph = true) cannot be reduced: the average would "
         "not be part of the graph"
         "\n  next:    compute inner derivatives with "
         "torch::autograd::grad(), which is not reduced, and call backward() "
         "on the resulting loss";
}

std::string partly_reduced_text(const std::string& name) {
  return "the pass would add to the gradient of " + name +
         ", of which an earlier pass has reduced only the part that this rank "
         "owns"
         "\n  likely:  a step has two reduced backward passes, or zero_grad() "
         "was left out"
         "\n  next:    call zero_grad() before each reduced pass; run all but "
         "the last pass of a step within no_sync()";
}

std::string text_of_exception(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& known) {
    return known.what();
  } catch (...) {
    return "it threw an exception that is not a std::exception";
  }
}

}  // namespace lockstep
