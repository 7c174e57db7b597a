// Finds a program as a shell would.
//
// Threads: pure, but for looking at the disk.
// Errors:  CannotExecute: ENOENT when there is none, EACCES when what is there
//          may not be executed.
#pragma once

#include <string>
#include <string_view>

#include "lockstep/base/error.h"

namespace lockstep {

// A program that could not be started at all.
class CannotExecute : public SystemError {
 public:
  // `name` as the user wrote it.
  CannotExecute(std::string_view name, int error_number);

  // As shells have it: 127 when there is no such program, else 126.
  int exit_code() const;
};

// The file to execute for `name`: itself when it contains a slash, otherwise
// the first executable of that name in the folders of `path` (those of PATH).
std::string find_program(std::string_view name, std::string_view path);

}  // namespace lockstep
