// Finds a program as a shell does.
//
// Threads: any thread; reads the disk.
// Errors:  CannotExecute: ENOENT when no file is found, EACCES when the file is
//          not executable.
#pragma once

#include <string>
#include <string_view>

#include "lockstep/base/error.h"

namespace lockstep {

// The program could not be started.
class CannotExecute : public SystemError {
 public:
  // `name` as the user typed it.
  CannotExecute(std::string_view name, int error_number);

  // As in a shell: 127 when there is no such program, else 126.
  int exit_code() const;
};

// The file to execute for `name`: `name` itself when it contains a slash,
// otherwise the first executable of that name in the folders of `path` (PATH).
std::string find_program(std::string_view name, std::string_view path);

}  // namespace lockstep
