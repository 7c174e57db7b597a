// The environment of this process, as what takes an EnvironmentLookup wants it.
//
// Threads: any, while none changes the environment.
#pragma once

#include <optional>
#include <string>

namespace lockstep {

// The value of an environment variable, or nothing when it is unset.
std::optional<std::string> environment_variable(const std::string& name);

}  // namespace lockstep
