// Words for a POSIX shell.
//
// Threads: any thread.
// Errors:  none.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace lockstep {

// `text` as one word of a shell, in quotes where it needs them.
std::string shell_word(std::string_view text);

// The command line of `words`.
std::string command_line(std::span<const std::string> words);

}  // namespace lockstep
