// Error texts for backward passes that cannot be reduced.
#pragma once

#include <exception>
#include <string>

#include "lockstep/comm/process_group.h"
#include "src/planning/pass_policy.h"

namespace lockstep {

// `lines` is MissingGradients::lines().
std::string missing_gradients_text(const ProcessGroup& group,
                                   PassPolicy::Rule rule,
                                   const std::string& lines);

// For an unexpected gradient of the parameter `name`.
std::string unexpected_gradient_text(const std::string& name,
                                     PassPolicy::Rule rule);

std::string create_graph_text();

// For a gradient to which a pass would add, and of which a hook has reduced a
// part only.
std::string partly_reduced_text(const std::string& name);

// What `error`, which is not null, says of itself.
std::string text_of_exception(const std::exception_ptr& error);

}  // namespace lockstep
