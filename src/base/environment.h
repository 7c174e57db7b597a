// Numbers in environment variables.
//
// Threads: any thread on which the lookup may run.
// Errors:  InvalidArgument naming the variable, its value and the expected
//          range.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace lockstep {

// The value of an environment variable, or nothing when it is unset.
using EnvironmentLookup =
    std::function<std::optional<std::string>(const std::string& name)>;

// Parses the whole value of `name` as a number from `least` to `most`. Returns
// nothing when the variable is unset.
std::optional<std::int64_t> read_integer(const EnvironmentLookup& lookup,
                                         const char* name, std::int64_t least,
                                         std::int64_t most);
std::optional<double> read_real(const EnvironmentLookup& lookup,
                                const char* name, double least, double most);

}  // namespace lockstep
