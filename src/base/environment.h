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

// `lookup` without the variables of Lockstep and of the rendezvous that are
// empty: as in most programs, these count as unset. An empty number of a rank
// (RANK, WORLD_SIZE, …) stays, and is an error: a rank that took it for unset
// would train alone.
EnvironmentLookup without_empty(EnvironmentLookup lookup);

// Parses the whole value of `name` as a number from `least` to `most`. Returns
// nothing when the variable is unset.
std::optional<std::int64_t> read_integer(const EnvironmentLookup& lookup,
                                         const char* name, std::int64_t least,
                                         std::int64_t most);
std::optional<double> read_real(const EnvironmentLookup& lookup,
                                const char* name, double least, double most);

}  // namespace lockstep
