// Shared by our commands' flags: parsing that turns every usage error into one
// line.
//
// Threads: one thread at a time, like CLI::App.
// Errors:  InvalidArgument.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "apps/options/flag_checks.h"

namespace CLI {  // NOLINT(readability-identifier-naming): as CLI11 has it
class App;
}

namespace lockstep {

// The limit on ranks, and on threads per rank; more would only overload a host.
// A Loader takes as many workers.
inline constexpr int kMostRanksOfAHost = 1024;
inline constexpr int kMostThreadsOfARank = 1024;

// Why `file` cannot be replaced, or "". Call it before the work whose result
// goes there. InvalidArgument's text begins with `flag`.
void check_file_to_write(std::string_view flag, const std::string& file);

// Parses `arguments` (without the program's name) into the targets registered
// with `command`. Accepts mpirun's -np for -n, and underscores for the dashes
// in a flag's name. Lets CLI::Success (a request for help) pass through.
void parse_flags(CLI::App& command, std::span<const char* const> arguments);

// One line for flags and arguments that `command` does not know; suggests the
// nearest flag. `name` is the command as typed.
std::string unknown_argument(const CLI::App& command, std::string_view name,
                             std::string_view argument);

// Throws that line for the first argument that `command`, after parsing, did
// not recognize.
void refuse_extras(const CLI::App& command, std::string_view name);

}  // namespace lockstep
