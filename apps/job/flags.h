// Shared by our commands' flags: checks with readable messages, and parsing
// that turns every usage error into one line.
//
// Threads: one thread at a time, like CLI::App.
// Errors:  InvalidArgument.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/number_in.h"

namespace CLI {  // NOLINT(readability-identifier-naming): as CLI11 has it
class App;
}

namespace lockstep {

// A check for CLI::Option::check(): returns what is wrong with the text, or "".
using FlagCheck = std::function<std::string(const std::string&)>;

// A whole number from `least` to `most`; without `most`, up to the limit of the
// flag's type.
FlagCheck whole_number(std::int64_t least);
FlagCheck whole_number(std::int64_t least, std::int64_t most);

// The entries of a list such as "1,2", empty ones too: CLI11's own delimiter
// leaves them out, so that a slip of the hand would change the list unseen.
std::vector<std::string> entries_of(const std::string& list);

// Each entry of such a list passes `entry`.
FlagCheck list_of(FlagCheck entry);

// The numbers of such a list, which list_of(whole_number(…)) has passed.
template <class Number>
std::vector<Number> numbers_in(const std::string& list) {
  std::vector<Number> numbers;
  for (const std::string& entry : entries_of(list))
    numbers.push_back(number_in<Number>(entry).value());
  return numbers;
}

// The limit on ranks, and on threads per rank; more would only overload a host.
// A Loader takes as many workers.
inline constexpr int kMostRanksOfAHost = 1024;
inline constexpr int kMostThreadsOfARank = 1024;

// Why `file` cannot be replaced, or "". Call it before the work whose result
// goes there. InvalidArgument's text begins with `flag`.
void check_file_to_write(std::string_view flag, const std::string& file);

// A number from `least`; below `below`.
FlagCheck number(double least, double below);

// A number greater than zero.
FlagCheck positive_number();

// One of `known`; `what` is the kind of name ("model").
FlagCheck one_of(std::string what, std::span<const std::string_view> known);

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
