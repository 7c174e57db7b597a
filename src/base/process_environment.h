// The environment of this process as an EnvironmentLookup.
//
// Threads: any thread, while no thread changes the environment.
#pragma once

#include <optional>
#include <string>

namespace lockstep {

// The value of an environment variable, or nothing when it is unset.
std::optional<std::string> environment_variable(const std::string& name);

}  // namespace lockstep
