// Error texts for backward passes that cannot be reduced.
#pragma once

#include <string>

#include "lockstep/comm/process_group.h"
#include "src/planning/pass_expectation.h"

namespace lockstep {

// `lines` is MissingGradients::lines().
std::string missing_gradients_text(const ProcessGroup& group,
                                   PassExpectation::Rule rule,
                                   const std::string& lines);

// For an unexpected gradient of the parameter `name`.
std::string unexpected_gradient_text(const std::string& name,
                                     PassExpectation::Rule rule);

std::string create_graph_text();

}  // namespace lockstep
