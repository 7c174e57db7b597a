// Finds a program as a shell would.
//
// Threads: pure, but for looking at the disk.
// Errors:  SystemError: ENOENT when there is none, EACCES when what is there
// may
//          not be executed.
#pragma once

#include <string>
#include <string_view>

namespace lockstep {

// The file to execute for `name`: itself when it contains a slash, otherwise
// the first executable of that name in the folders of `path` (those of PATH).
std::string find_program(std::string_view name, std::string_view path);

}  // namespace lockstep
