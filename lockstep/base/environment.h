// Numbers in environment variables.
//
// Threads: pure functions, but for what the lookup does.
// Errors:  InvalidArgument naming the variable, its value and what it must be.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace lockstep {

// The value of an environment variable, or nothing when it is unset.
using EnvironmentLookup =
    std::function<std::optional<std::string>(const std::string& name)>;

// The number that is the whole value of `name`, from `least` to `most`; nothing
// when the variable is unset.
std::optional<std::int64_t> read_integer(const EnvironmentLookup& lookup,
                                         const char* name, std::int64_t least,
                                         std::int64_t most);
std::optional<double> read_real(const EnvironmentLookup& lookup,
                                const char* name, double least, double most);

}  // namespace lockstep
